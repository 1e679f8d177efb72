"""A replica of a test database that is compared with `logicalrep.verification`."""

from __future__ import annotations

from typing import Any

from logicalrep.recorder import Event
from logicalrep.recorder.storage.status import stored_lsn
from logicalrep.verification import AwaitingRecording, TableVerdict, verify_tables
from tests.recorder.lab import wait_until
from tests.replica import live


class Replica(live.Replica):
    """A replica of a test database, which a recorder in a thread records."""

    def replicate(self) -> None:
        """Apply all changes that were committed so far."""
        lsn = self.lab.lsn()
        self.tick()
        wait_until(lambda: stored_lsn(self.lab.folder) >= lsn)
        self.follow()

    def verify(self, *tables: str, **options: Any) -> list[TableVerdict]:
        """Compare the replica with the database; return the verdicts, without the table `tick`."""
        verdicts = verify_tables(
            self.lab.folder, self.target, self.lab.dsn, tables=tables, on_event=self.report, **options
        )
        return [one for one in verdicts if one.table != "public.tick"]

    def unequal(self, *tables: str, **options: Any) -> list[TableVerdict]:
        """Compare the replica with the database; return the verdicts of the tables that are not equal."""
        return [one for one in self.verify(*tables, **options) if not one.is_equal]

    def report(self, event: Event) -> None:
        """Handle an event of the comparison: if it waits for the recording, have a segment stored."""
        if isinstance(event, AwaitingRecording):
            self.tick()

    def tick(self) -> None:
        """Commit a transaction, after which the recorder stores a segment."""
        self.lab.run("INSERT INTO tick VALUES (1)")

    def verified_lsn(self, name: str) -> int | None:
        """Return the LSN up to which a table was found equal; None if it was not."""
        verified = self.table(name).verified_through
        return None if verified is None else verified.lsn
