"""The self-check: compares the tables of a replica with the server, and has differences copied."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from threading import Event
from typing import Final, NamedTuple

import msgspec

from logicalrep._text import counted, one_line
from logicalrep.apply import Difference, TableResult
from logicalrep.errors import ReplicationError
from logicalrep.recording import Location, Recording
from logicalrep.replica import (
    CheckedTable,
    SelfCheckReport,
    existing_tables,
    mark_difference,
    read_self_check,
    replica_table,
    selected_tables,
    store_self_check,
)
from logicalrep.verification.selfcheck.comparison import Comparison
from logicalrep.verification.selfcheck.published import SETTINGS, Publications, Server
from logicalrep.verification.selfcheck.schedule import RETRY, Schedule
from logicalrep.verification.selfcheck.source import Key
from logicalrep.wire import parse_lsn

REASON: Final = "the self-check found"
"""Beginning of the reason that a table may differ."""

_GROUP: Final = 16
"""Largest number of tables that are compared together: all wait once until the replica is there."""
_TICK: Final = 0.2
_WAIT_SECONDS: Final = 600.0
"""Largest number of seconds until the replica is there; it may wait for a large transaction."""
_AGAIN_SECONDS: Final = 3.0
"""Seconds until a table is compared again that differs or is copied."""
_DIFFERENT_SECONDS: Final = 3600.0
"""Seconds until a table is compared again that differs and is not copied."""
_RECONNECT_SECONDS: Final = 30.0
_PATIENCE: Final = 10
"""Number of errors in a row after which the user is told."""

_WAL_END: Final = """\
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END,
    CASE current_setting('synchronous_standby_names') WHEN '' THEN txid_snapshot_xmax(snapshot)
        ELSE txid_snapshot_xmin(snapshot) END, txid_snapshot_xmax(snapshot)
FROM txid_current_snapshot() snapshot"""
"""Query for the end of the WAL, the XID below which what is in the WAL is visible, and the next XID.

A commit that waits for a synchronous standby is in the WAL, and so in the replica, before it is visible.
"""


class Replicated(msgspec.Struct, frozen=True):
    """The replica that is checked, what its recorder does, and whom to tell.

    Args:
        recording: The recording, which only the self-check refreshes.
        target: The folder that holds the replica.
        connect: Returns a connection to the server.
        stored: Returns the LSN up to which everything is recorded.
        applied: Returns the number of the last segment whose changes were all applied.
        request: Asks the recorder to copy a table, or its rows with some keys; returns what identifies the
            request.
        is_requested: Returns whether a request is unfinished.
        report: Called with the result for a table in which a difference was found.
        warn: Called with what the user should know; each text is given once.
        max_bytes: Largest size of a table whose rows are all copied because of a difference.
        stop: Ends the check when it is set.
    """

    recording: Recording
    target: Location
    publications: Sequence[str]
    connect: Callable[[], Server]
    stored: Callable[[], int]
    applied: Callable[[], int]
    request: Callable[[str, Collection[Key] | None], str]
    is_requested: Callable[[str], bool]
    report: Callable[[TableResult], None]
    warn: Callable[[str], None]
    max_bytes: int
    stop: Event


class _Suspect(NamedTuple):
    """A difference that counts if it is found again."""

    keys: set[Key]
    sample: set[Key] | None
    """The keys to compare again; None for the whole table."""
    next_xid: int
    """Transactions from here on began after the comparison."""


class SelfCheck:
    """Compares the tables of a replica with the server, one after the other, and has differences copied."""

    def __init__(self, replicated: Replicated) -> None:
        self._of = replicated
        self._schedule = Schedule(SelfCheckReport(), time.time())
        self._lsn = 0
        self._warned: set[str] = set()
        self._suspects: dict[int, _Suspect] = {}

    @property
    def findings(self) -> SelfCheckReport:
        """What is known about the tables."""
        return self._schedule.report

    def run(self) -> None:
        """Check the tables until `stop` is set; connect again after an error."""
        while not self._of.stop.is_set():
            try:
                known = read_self_check(self._of.target)
                self._schedule = Schedule(known or SelfCheckReport(), time.time())
                self._check_tables()
            except Exception as error:  # nothing that the check meets may end the replication
                self._tell(f"the self-check is tried again: {one_line(error)}")
                self._of.stop.wait(_RECONNECT_SECONDS)

    def _check_tables(self) -> None:
        server, due, failures = self._of.connect(), 0.0, 0
        try:
            publications = self.open(server)
            while not self._of.stop.wait(1.0):
                try:
                    if time.time() >= due:
                        self.read_states(publications)
                        due = time.time() + self._schedule.reading_pause
                    if oids := self._schedule.next(time.time(), _GROUP):
                        self.check(publications, oids)
                        store_self_check(self._of.target, self.findings)
                    failures = 0
                except ReplicationError:  # such as a locked table, or a conflict on a standby
                    failures += 1
                    if failures > _PATIENCE:
                        raise
        finally:
            server.close()

    def open(self, server: Server) -> Publications:
        """Limit how long the queries of a connection take; return the publications."""
        for setting in SETTINGS.split(";"):
            server.query(setting)
        last = self._of.recording.last
        is_binary = last is not None and last.source.options.get("binary") == "on"
        return Publications(server, self._of.publications, binary=is_binary)

    def read_states(self, publications: Publications) -> None:
        """Note which tables are published."""
        spent, now = publications.seconds, time.time()
        states = publications.states()
        self._schedule.saw(states, publications.seconds - spent, now)

    def check(self, publications: Publications, oids: Collection[int]) -> None:
        """Compare tables: look at the server, wait until the replica is there, read it, and look again."""
        spent = publications.seconds, time.thread_time()
        compared = self._begin(publications, oids)
        for one in compared:
            one.run(Comparison.look_first)
        lsn, _, next_xid = self._wal_end(publications)
        if not all(one.refusal for one in compared):
            self._await_replica(lsn)
        for one in compared:
            one.run(Comparison.read_replica)
        stored = self._of.stored()
        self._await(lambda: self._wal_end(publications)[0] >= stored)  # a standby may be behind the replica
        visible_xid = self._wal_end(publications)[1]
        for one in compared:
            one.run(Comparison.look_again)
        states = publications.states()
        seconds = max(publications.seconds - spent[0], time.thread_time() - spent[1])
        self._schedule.spend(seconds)
        for one in compared:
            if states.get(one.table.oid, ("", ""))[1] != one.table.state:
                one.error = one.error or "the table is altered again and again"
            self._judge(one, seconds / len(compared), visible_xid, next_xid)

    def _begin(self, publications: Publications, oids: Collection[int]) -> list[Comparison]:
        """Return a comparison of each table that the recorder is not going to copy, if it is published."""
        of, schedule = self._of, self._schedule
        requests = {oid: self.findings.tables[oid].request for oid in oids}
        copied = {oid for oid, request in requests.items() if request and of.is_requested(request)}
        for oid in oids:
            schedule.retry(oid, time.time(), _AGAIN_SECONDS if oid in copied else RETRY)
        of.recording.refresh()
        last = of.recording.last
        incomplete = {one.oid for one in (last.incomplete if last is not None else ())}
        selected, existing = selected_tables(of.target), existing_tables(of.target)
        tables, compared = publications.tables({*oids} - copied), []
        for oid in {*oids} - copied - {table.oid for table in tables}:
            self._leave(oid, schedule.leave(oid))
        for table in tables:
            if selected is not None and table.full_name not in selected and table.oid not in existing:
                table.refusal = "the target does not follow the table"
            if table.refusal or table.oid not in incomplete:
                suspect, failures = self._suspects.get(table.oid), schedule.failures[table.oid]
                again = None if suspect is None else suspect.sample
                compared.append(Comparison(publications, of.target, table, again, failures))
        return compared

    def _leave(self, oid: int, known: CheckedTable) -> None:
        """Mark a table that is not published any more, if the recorder has not done so."""
        table = replica_table(self._of.target.place, oid)
        if table is not None and table.place and not (table.dropped or table.may_differ):
            found = "that the publications do not contain the table: its rows are out of date"
            self._mark(known, oid, found, is_told=True)

    def _judge(self, one: Comparison, seconds: float, visible_xid: int, next_xid: int) -> None:
        """Note what a comparison has found. A difference counts once a second comparison finds it, too."""
        oid, now = one.table.oid, time.time()
        if one.error:
            self._schedule.retry(oid, now, error=one.error)
            return
        suspect = self._suspects.pop(oid, None)
        different = set() if one.refusal else one.different()
        if different and (suspect is None or visible_xid < suspect.next_xid):
            self._suspects[oid] = suspect or _Suspect(different, one.keys and different, next_xid)
            self._schedule.retry(oid, now, _AGAIN_SECONDS)
            return
        known = self._schedule.finish(oid, one.table.state, seconds, now, one.refusal)
        if suspect is not None:
            different &= suspect.keys
        if different:
            self._mend(one, different, known)
        elif known.difference and not one.refusal:
            known.difference = ""
            if one.keys is None:  # a sample may have missed the difference
                mark_difference(self._of.target, oid, REASON, None)

    def _mend(self, one: Comparison, different: set[Key], known: CheckedTable) -> None:
        """Mark a table that differs, and have it copied once."""
        of, table = self._of, one.table
        is_told = one.exists or bool(known.difference)  # a table without a mark
        known.difference = f"{counted(len(different), 'difference')} in {counted(one.rows, 'row')} compared"
        store_self_check(of.target, self.findings)  # a run after a kill takes back the mark
        keys = different if one.keys is None and one.exists and table.has_identity else None
        seconds = _DIFFERENT_SECONDS
        if known.copied == table.state:
            outcome = ", again after a copy"
        elif keys is not None or sum(leaf.size for leaf in table.leaves) < of.max_bytes:
            known.request, known.copied = of.request(table.full_name, keys), table.state
            outcome, seconds = ", and has had them copied", _AGAIN_SECONDS
        else:
            outcome = ", and the table is too large to be copied unasked: see `logicalrep snapshot`"
        self._schedule.retry(table.oid, time.time(), seconds)
        self._mark(known, table.oid, f"rows that differ from the server{outcome}", is_told=is_told)

    def _mark(self, known: CheckedTable, oid: int, found: str, *, is_told: bool) -> None:
        """Mark a table that may differ; report it if it was not marked so, and the user is not told."""
        mark = Difference(self._lsn, f"{REASON} {found}")
        if mark_difference(self._of.target, oid, REASON, mark) or not is_told:
            namespace, _, name = known.name.partition(".")
            self._of.report(TableResult(oid, namespace, name, {}, (mark,)))

    def _wal_end(self, server: Publications) -> tuple[int, int, int]:
        """Return the results of `_WAL_END`."""
        ((lsn, visible_xid, next_xid),) = server.query(_WAL_END)
        self._lsn = parse_lsn(lsn)
        return self._lsn, int(visible_xid), int(next_xid)

    def _await_replica(self, lsn: int) -> None:
        """Wait until everything up to an LSN is in the replica."""
        of = self._of
        self._await(lambda: of.stored() >= lsn)
        of.recording.refresh()
        last = max(of.recording.numbers, default=0)
        self._await(lambda: of.applied() >= last)

    def _await(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true, at most `_WAIT_SECONDS`."""
        end = time.monotonic() + _WAIT_SECONDS
        while not condition():
            if self._of.stop.wait(_TICK):
                raise ReplicationError("the self-check was stopped")
            if time.monotonic() > end:
                raise ReplicationError(f"the replica was not there within {_WAIT_SECONDS:.0f} seconds")

    def _tell(self, text: str) -> None:
        if text not in self._warned and not self._of.stop.is_set():
            self._warned.add(text)
            self._of.warn(text)
