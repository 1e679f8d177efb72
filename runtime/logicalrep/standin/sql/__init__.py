"""SQL of a stand-in server: look-ups in catalogs, settings, slots and transaction control.

- `Engine` executes queries on the catalogs with DuckDB.
- `StatementExecutor` executes the SQL statements of a connection.
- `ExtendedQuery` handles the messages of the extended query protocol.
- `split_statements` splits the text of a simple query into statements.
"""

from logicalrep.standin.sql.engine import Engine as Engine
from logicalrep.standin.sql.extended_query import ExtendedQuery as ExtendedQuery
from logicalrep.standin.sql.statements import StatementExecutor as StatementExecutor
from logicalrep.standin.sql.tokens import split_statements as split_statements
