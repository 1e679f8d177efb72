"""Run the parsers of pg-streamline on test vectors. Its producer ignores all but Insert, Update and Delete.

The parsers ask the database for the columns of a table. The adapter's columns are c0, c1, ….
"""

from __future__ import annotations

from typing import Any

from loop import serve, version_1_text
from pg_streamline.parser.delete import DeleteMessage
from pg_streamline.parser.insert import InsertMessage
from pg_streamline.parser.update import UpdateMessage

COLUMNS = [(f"c{i}", 25) for i in range(2000)]


class Cursor:
    """A cursor that answers each query with the same columns."""

    def execute(self, query: str) -> None:
        """Ignore the query."""

    def fetchall(self) -> list[tuple[str, int]]:
        """Return the columns: name and OID of the type."""
        return COLUMNS


def decode(data: bytes) -> dict[str, Any]:
    """Decode a message; old and new rows are values by column name. Old rows and keys are not told apart."""
    match data[:1]:
        case b"I":
            found: Any = InsertMessage(data, Cursor()).decode_insert_message()
            return {"type": "Insert", "relation_oid": found["relation_id"], "new": cells(found["new"])}
        case b"U":
            found = UpdateMessage(data, Cursor()).decode_update_message()
            return {"type": "Update", "relation_oid": found["relation_id"], "new": cells(found["new"])}
        case b"D":
            found = DeleteMessage(data, Cursor()).decode_delete_message()
            return {"type": "Delete", "relation_oid": found["relation_id"]}
    return {}


def cells(row: dict[str, Any]) -> list[Any]:
    """Return the values of a row; the parsers return None for NULL and for unchanged values."""
    return [{} if value is None else value for value in row.values()]


if __name__ == "__main__":
    serve(lambda request: decode, version_1_text)
