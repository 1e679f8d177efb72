"""A replica of a test database, which is compared with the database."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from logicalrep.replica import Dropped, ReplicaTable, TableResult, replica_tables, replicate
from tests.recorder.lab import Lab
from tests.replica.tables import read_table, row_texts


class Replica:
    """A replica in a local folder, written without Spark.

    Args:
        lab: The test database, which is recorded.
        target: Folder of the replica.
        history: Whether the replica keeps all versions of rows.
    """

    def __init__(self, lab: Lab, target: Path, *, history: bool = False) -> None:
        self.lab, self.target, self.history = lab, target, history

    def follow(self, dropped: Dropped = "keep") -> list[str]:
        """Apply the changes that were recorded since the last call; return the names of the tables."""
        results: list[TableResult] = []
        replicate(
            self.lab.folder,
            self.target,
            history=self.history,
            dropped=dropped,
            on_batch=lambda batch, applied: results.extend(applied),
        )
        assert not [one.error for one in results if one.error]
        return [one.name for one in results]

    def table(self, name: str) -> ReplicaTable:
        """Return the description of a table, by its name, as `replica_tables` lists it."""
        (table,) = (one for one in replica_tables(self.target).values() if one.name == name)
        return table

    def delta(self, name: str) -> DeltaTable:
        """Return the Delta table of the replica that follows the server's table `name`."""
        return DeltaTable(self.table(name).place)

    def rows(self, name: str) -> list[dict[str, str | None]]:
        """Return the current rows of a table as text."""
        rows = map(row_texts, read_table(self.table(name).place).to_pylist())
        return [row for row in rows if row.pop("__END_AT", None) is None]

    def may_differ(self) -> list[str]:
        """Return the names of the tables that may differ from their source."""
        return [one.name for one in replica_tables(self.target).values() if one.may_differ]

    def assert_equal(self, name: str = "t") -> None:
        """Check that a table of the replica equals the server's table."""
        query = (
            "SELECT attname FROM pg_attribute "
            f"WHERE attrelid = '{name}'::regclass AND attnum > 0 AND NOT attisdropped"
        )
        names = [one for (one,) in self.lab.rows(query)]
        values = ", ".join(f"{one}::text" for one in names)
        expected = self.lab.rows(f"SELECT {values} FROM {name}")
        found = [tuple(row[one] for one in names) for row in self.rows(name)]
        assert sorted(map(str, found)) == sorted(map(str, expected))
