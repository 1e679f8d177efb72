"""PySpark over replication streams: messages, committed changes, tables.

`read_messages` gives one row per message, `read_changes` one row per committed change, `read_table` a
table's rows with their own types; `write_tables` is the job that does all three for capture files. Data
moves in Arrow batches throughout.
"""

from pgoutput.spark.captures import CAPTURED_MESSAGES, CHANGES, read_changes, read_messages
from pgoutput.spark.session import local_session
from pgoutput.spark.tables import SourceTable, list_tables, read_table, write_tables

__all__ = [
    "CAPTURED_MESSAGES",
    "CHANGES",
    "SourceTable",
    "list_tables",
    "local_session",
    "read_changes",
    "read_messages",
    "read_table",
    "write_tables",
]
