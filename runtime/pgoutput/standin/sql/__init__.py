"""SQL of a stand-in server: look-ups in catalogs, settings, slots and transaction control.

- `StatementExecutor` executes the SQL statements of a connection.
- `ExtendedQuery` handles the messages of the extended query protocol.
- `split_statements` splits the text of a simple query into statements.
"""

from pgoutput.standin.sql.extended_query import ExtendedQuery
from pgoutput.standin.sql.sqlite_dialect import split_statements
from pgoutput.standin.sql.statements import StatementExecutor

__all__ = ["ExtendedQuery", "StatementExecutor", "split_statements"]
