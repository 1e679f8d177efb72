"""A replica of a test database: it applies recorded changes, and is compared with the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from pgoutput.recorder import Event
from pgoutput.recorder.exported_snapshot import stored_lsn
from pgoutput.recording import Recording
from pgoutput.replica import Owner, claim_target, replica_tables
from pgoutput.verification import AwaitingRecording, TableVerdict, verify_tables
from tests.recorder.lab import Lab, wait_until
from tests.replica.changes import recorded_changes, sorted_changes
from tests.replica.tables import apply


class Replica:
    """A replica in a local folder, written without Spark.

    Args:
        lab: The test database, which is being recorded.
        target: Folder of the replica.
        history: Whether the replica keeps all versions of rows.
    """

    def __init__(self, lab: Lab, target: Path, *, history: bool = False) -> None:
        self.lab, self.target, self.history = lab, target, history
        self._applied: set[tuple[int, int]] = set()
        self._batch = 0

    def replicate(self) -> None:
        """Apply all changes that were committed so far."""
        lsn = self.lab.lsn()
        self.tick()
        wait_until(lambda: stored_lsn(self.lab.folder) >= lsn)
        identity = Recording(self.lab.folder).identity
        claim_target(self.target, Owner("q", "history" if self.history else "tables", identity), batch=0)
        changes = sorted_changes(recorded_changes(self.lab.folder))
        places = list(zip(changes["commit_lsn"].to_pylist(), changes["position"].to_pylist(), strict=True))
        new = changes.filter(pa.array([place not in self._applied for place in places]))
        self._applied.update(places)
        apply(new.to_batches(), self.target, "q", self._batch, recording=identity, history=self.history)
        self._batch += 1

    def verify(self, *tables: str, **options: Any) -> list[TableVerdict]:
        """Compare the replica with the database; return the verdicts, without the table `tick`."""
        verdicts = verify_tables(
            self.lab.folder, self.target, self.lab.dsn, tables=tables, report=self.report, **options
        )
        return [one for one in verdicts if one.table != "public.tick"]

    def unequal(self, *tables: str, **options: Any) -> list[TableVerdict]:
        """Compare the replica with the database; return the verdicts of the tables that are not equal."""
        return [one for one in self.verify(*tables, **options) if not one.is_equal]

    def report(self, event: Event) -> None:
        """Have the recorder store a segment, when the comparison waits for the recording."""
        if isinstance(event, AwaitingRecording):
            self.tick()

    def tick(self) -> None:
        """Commit a transaction, after which the recorder stores a segment."""
        self.lab.run("INSERT INTO tick VALUES (1)")

    def delta(self, name: str) -> DeltaTable:
        """Return the Delta table of a table."""
        places = {one.name: one.place for one in replica_tables(self.target).values()}
        return DeltaTable(places[name])

    def verified_lsn(self, name: str) -> int | None:
        """Return the LSN up to which a table was found equal; None if it was not."""
        tables = {one.name: one for one in replica_tables(self.target).values()}
        verified = tables[name].verified_through
        return None if verified is None else verified.lsn
