"""The self-check: compares samples of the replica's tables with the server while the replica follows it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Final, Literal

import msgspec

from pgoutput._text import counted, one_line
from pgoutput.apply import Difference, TableResult
from pgoutput.errors import ConnectionLost, RecordingError, ReplicationError
from pgoutput.recording import Location, Recording
from pgoutput.replica import (
    CheckedTable,
    SelfCheckReport,
    existing_tables,
    mark_difference,
    read_self_check,
    replica_table,
    selected_tables,
    store_self_check,
)
from pgoutput.verification.selfcheck.published import SETTINGS, Publications, PublishedTable, Server
from pgoutput.verification.selfcheck.replica import Digests, ReplicaTable
from pgoutput.verification.selfcheck.schedule import Schedule
from pgoutput.verification.selfcheck.source import (
    MAX_ROWS,
    Key,
    Rows,
    look_at_all,
    look_at_pages,
    look_up,
)
from pgoutput.wire import parse_lsn

REASON: Final = "the self-check found"
"""Beginning of the reason that a table may differ."""

_SAMPLE: Final = 500
"""Number of rows that are drawn on each side from a table that is not small."""
_GROUP: Final = 16
"""Largest number of tables that are compared together: all wait once until the replica is there."""
_TICK: Final = 0.2
_WAIT_SECONDS: Final = 600.0
"""Largest number of seconds until the replica is there; it may wait for a large transaction."""
_CONFIRM_SECONDS: Final = 3.0
"""Seconds between the two comparisons that must find the same difference."""
_PATIENCE: Final = 10
"""Number of errors in a row after which the user is told."""
_STANDSTILL_SECONDS: Final = 60.0
"""Seconds for which a table must not be published before its rows count as out of date."""

_WAL_END: Final = """\
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END,
    txid_snapshot_xmin(txid_current_snapshot()), txid_snapshot_xmax(txid_current_snapshot()),
    current_setting('synchronous_standby_names')"""


class Replicated(msgspec.Struct, frozen=True):
    """The replica that is checked, and what its recorder does.

    Args:
        recording: The recording, which only the self-check refreshes.
        target: The folder that holds the replica.
        connect: Returns a connection to the server.
        stored: Returns the LSN up to which everything is recorded.
        applied: Returns the number of the last segment whose changes were all applied.
        request: Asks the recorder to copy a table, or its rows with some keys; returns a function that
            returns whether the copy is unfinished.
    """

    recording: Recording
    target: Location
    publications: Sequence[str]
    connect: Callable[[], Server]
    stored: Callable[[], int]
    applied: Callable[[], int]
    request: Callable[[str, Collection[Key] | None], Callable[[], bool]]


class _Compared(msgspec.Struct):
    """The comparison of one table."""

    table: PublishedTable
    wanted: set[Key] | None = None
    """The keys to compare; None for the whole table."""
    replica: ReplicaTable | None = None
    first: Rows = {}
    second: Rows = {}
    there: Digests = {}
    is_complete: bool = True
    """Whether a row that was not found in the replica is missing there."""
    seconds: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0])
    """What the comparison took on the server and here."""
    refusal: str = ""
    """Why the table is not compared; empty if it is."""
    error: str = ""
    """Why the table could not be compared this time; empty if it was."""

    @contextmanager
    def spending(self, side: Literal[0, 1]) -> Iterator[None]:
        """Add the time of a `with` block to `seconds`, and keep an error as `error`."""
        clock = (time.monotonic, time.thread_time)[side]  # here, other threads use the same core
        began = clock()
        try:
            yield
        except Exception as error:  # the other tables are compared nevertheless
            self.error = one_line(error)
        self.seconds[side] += clock() - began

    def different(self) -> set[Key]:
        """Return the keys whose rows did not change between the looks, and differ from the replica's."""
        if self.error or self.refusal:
            return set()
        keys = self.first.keys() | self.second.keys() | self.there.keys() | (self.wanted or set())
        return {key for key in keys if self._differs(key)}

    def _differs(self, key: Key) -> bool:
        first, second = (sorted(rows.get(key, ())) for rows in (self.first, self.second))
        there = self.there.get(key, [])
        is_known = self.is_complete or bool(there)
        return is_known and first == second and sorted(one.digest for one in second) != sorted(there)


class SelfCheck:
    """Compares the tables of a replica with the server, one after the other, and has differences copied.

    Args:
        replicated: The replica that is checked.
        report: Called with the result for a table in which a difference was found.
        warn: Called with what the user should know; each text is given once.
        max_bytes: Largest size of a table whose rows are all copied because of a difference.
        stop: Ends the check when it is set.
    """

    def __init__(
        self,
        replicated: Replicated,
        report: Callable[[TableResult], None],
        warn: Callable[[str], None],
        max_bytes: int,
        stop: Event,
    ) -> None:
        self._replicated, self._report, self._warn = replicated, report, warn
        self._max_bytes, self._stop = max_bytes, stop
        self._schedule = Schedule(SelfCheckReport(), time.time())
        self._chance = random.Random()
        self._lsn = 0
        self._warned: set[str] = set()
        self._copies: dict[int, Callable[[], bool]] = {}
        """Functions that return whether a copy is unfinished, by OID of the table."""
        self._failures = 0
        self._published: set[int] = set()
        self._left_out: set[int] = set()
        """OIDs of the published tables that the target does not follow."""
        self._gone: dict[int, float] = {}
        """When a table of the replica was first seen that is not published, by OID."""
        self._limits: dict[int, int] = {}
        """Number of rows to draw from tables whose rows are too large for `_SAMPLE`."""

    @property
    def findings(self) -> SelfCheckReport:
        """What is known about the tables."""
        return self._schedule.report

    def run(self) -> None:
        """Check the tables until `stop` is set; connect again after an error."""
        while not self._stop.is_set():
            try:
                known = read_self_check(self._replicated.target)
                self._schedule = Schedule(known or SelfCheckReport(), time.time())
                self._check_tables()
            except Exception as error:  # nothing that the check meets may end the replication
                self._tell(f"the self-check is tried again: {one_line(error)}")
                self._stop.wait(30.0)

    def _check_tables(self) -> None:
        server, due = self._replicated.connect(), 0.0
        try:
            publications = self.prepare(server)
            while not self._stop.wait(1.0):
                with self._patience():
                    if time.time() >= due:
                        due = time.time() + self._schedule.reading_pause
                        self.read_states(publications)
                    self._end_copies()
                    if oids := self._schedule.next(time.time(), _GROUP):
                        self.check(server, publications, oids)
                        store_self_check(self._replicated.target, self._schedule.report)
        finally:
            server.close()

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Go on after errors such as that of a locked table; tell them if they repeat."""
        try:
            yield
            self._failures = 0
        except ConnectionLost:
            raise
        except ReplicationError as error:
            self._failures += 1
            if self._failures > _PATIENCE:
                self._tell(f"the self-check waits: {one_line(error)}")

    def prepare(self, server: Server) -> Publications:
        """Limit how long the queries of a connection take; return the publications."""
        for setting in SETTINGS.split(";"):
            server.query(setting)
        last = self._replicated.recording.last
        is_binary = last is not None and last.source.options.get("binary") == "on"
        return Publications(server, self._replicated.publications, binary=is_binary)

    def read_states(self, publications: Publications) -> None:
        """Note which tables are published, and mark tables of the replica that are not any more."""
        began, target = time.monotonic(), self._replicated.target
        states, now = publications.states(), time.time()
        if self._published != states.keys():
            self._published = set(states)
            existing, selected = existing_tables(target), selected_tables(target)
            self._gone = {oid: self._gone.get(oid, now) for oid in existing - states.keys()}
            self._left_out = {
                oid
                for oid, (name, _) in states.items()
                if selected is not None and name not in selected and oid not in existing
            }
        followed = {oid: state for oid, state in states.items() if oid not in self._left_out}
        self._schedule.saw(followed, time.monotonic() - began, now)
        for oid in [oid for oid, since in self._gone.items() if since < now - _STANDSTILL_SECONDS]:
            self._gone[oid] = math.inf  # once
            known = replica_table(target.place, oid)
            if known is not None and known.place and not (known.dropped or known.may_differ):
                text = f"{REASON} that the publications do not contain the table: its rows are out of date"
                mark = Difference(self._lsn, text)
                mark_difference(target, oid, REASON, mark)
                self._report(TableResult(oid, known.namespace, known.name, {}, (mark,)))
        self._schedule.spend(time.monotonic() - began)

    def _end_copies(self) -> None:
        """Have the tables compared whose copies are finished."""
        for oid, is_unfinished in list(self._copies.items()):
            try:
                if is_unfinished():
                    continue
            except RecordingError as error:
                self._tell(f"the self-check had a copy requested, which failed: {one_line(error)}")
            del self._copies[oid]
            self._schedule.retry(oid, time.time(), seconds=0.0)

    def check(self, server: Server, publications: Publications, oids: Sequence[int]) -> None:
        """Compare tables; then compare again those that differ, and have differences copied."""
        compared = [_Compared(one) for one in publications.tables(oids)]
        incomplete = self._incomplete()
        for oid in oids:
            self._schedule.retry(oid, time.time())
        ready = [
            one for one in compared if not one.table.refusal and one.table.relation.oid not in incomplete
        ]
        self._compare(server, publications, ready)
        different = {one.table.relation.oid: keys for one in ready if (keys := one.different())}
        again = {
            one.table.relation.oid: _Compared(one.table, one.wanted and different[one.table.relation.oid])
            for one in ready
            if one.table.relation.oid in different
        }
        if again:
            self._await_visibility(server)
            self._compare(server, publications, list(again.values()))
            incomplete = self._incomplete()
        for one in compared:
            oid = one.table.relation.oid
            second = again.get(oid, one)
            one.error = one.error or second.error
            spent = max(
                map(sum, zip(one.seconds, second.seconds if second is not one else (0.0, 0.0), strict=True))
            )
            self._schedule.spend(spent)
            is_awaited = oid in incomplete and not one.table.refusal
            if is_awaited or oid not in self._schedule.report.tables:
                continue
            if one.error:
                self._schedule.retry(oid, time.time(), one.error)
                continue
            known = self._schedule.finish(oid, one.table.state, spent, time.time())
            known.refusal = one.table.refusal or one.refusal
            if not known.refusal:
                self._conclude(one, different.get(oid, set()) & second.different(), known)

    def _incomplete(self) -> set[int]:
        """Return the OIDs of the tables that the recorder is going to copy, or cannot."""
        self._replicated.recording.refresh()
        last = self._replicated.recording.last
        return {*self._copies, *(one.oid for one in (last.incomplete if last is not None else ()))}

    def _compare(self, server: Server, publications: Publications, compared: Sequence[_Compared]) -> None:
        """Look at the server, wait until the replica is there, read it, and look again."""
        if not compared:
            return
        for one in compared:
            self._look_first(server, one)
            if one.error:  # perhaps it took too long, because its rows are large
                oid = one.table.relation.oid
                self._limits[oid] = max(_SAMPLE // 50, self._limits.get(oid, _SAMPLE) // 5)
        lsn = self._wal_end(server)[0]
        self._await(lambda: self._replicated.stored() >= lsn)
        self._replicated.recording.refresh()
        last = max(self._replicated.recording.numbers, default=0)
        self._await(lambda: self._replicated.applied() >= last)
        for one in compared:
            with one.spending(1):
                if one.replica is not None and not one.refusal:
                    one.replica.refresh()
                    if one.wanted is None:
                        one.there = one.replica.all()
                    else:
                        one.there, one.is_complete = one.replica.find(one.wanted, self._chance)
        stored = self._replicated.stored()
        self._await(lambda: self._wal_end(server)[0] >= stored)  # a standby may be behind the replica
        for one in compared:
            with one.spending(0):
                if one.error or one.refusal or one.replica is None:
                    continue
                if one.wanted is not None:
                    one.second = look_up(server, one.table, one.wanted)
                else:
                    one.second = self._look_at_all(server, one.table, one.replica) or {}
        states = publications.states()
        for one in compared:
            if states.get(one.table.relation.oid, ("", ""))[1] != one.table.state:
                one.error = one.error or "the table is altered again and again"

    def _look_first(self, server: Server, one: _Compared) -> None:
        """Choose the rows to compare, and look at them on the server."""
        table, oid = one.table, one.table.relation.oid
        drawn: set[Key] = set()
        count = self._limits.get(oid, _SAMPLE)
        with one.spending(1):
            one.replica = replica = ReplicaTable(self._replicated.target, table.relation, table.key)
            if known := replica_table(self._replicated.target.place, oid):
                one.error = known.error
            if one.wanted is None and table.key and replica.exists:
                drawn = replica.draw(count, self._chance)
        if one.error:
            return
        with one.spending(0):
            if one.wanted is not None:
                one.first = look_up(server, table, one.wanted)
                return
            rows = self._look_at_all(server, table, replica) if replica.is_small else None
            if rows is not None:
                one.first = rows
            elif not table.key:
                one.refusal = f"it has no key, and more than {MAX_ROWS:,} rows"
            else:
                one.first = look_at_pages(server, table, count, self._chance)
                one.first |= look_up(server, table, drawn - one.first.keys())
                one.wanted = drawn | one.first.keys()

    def _look_at_all(self, server: Server, table: PublishedTable, replica: ReplicaTable) -> Rows | None:
        """Return all rows of a table, or one row if the replica lacks the table; None if a sample is due."""
        try:
            return look_at_all(server, table, MAX_ROWS if replica.exists else 1)
        except ReplicationError:  # it takes too long
            if not table.key:
                raise
            return None

    def _conclude(self, one: _Compared, different: set[Key], known: CheckedTable) -> None:
        """Mark a table in which a difference was found, and have it copied once; or take back the mark."""
        table, replica = one.table, one.replica
        oid, is_whole = table.relation.oid, one.wanted is None
        assert replica is not None
        if not different:
            if known.difference and (is_whole or not self._is_marked(oid)):
                known.difference = ""
                mark_difference(self._replicated.target, oid, REASON, None)
            return
        text = f"{REASON} rows that differ from the server"
        keys = different if is_whole and replica.exists and table.has_identity else None
        is_small = keys is not None or table.size < self._max_bytes
        if known.copied == table.state:
            text += ", again after a copy"
        elif is_small:
            self._copies[oid] = self._replicated.request(table.name, keys)
            known.copied = table.state
            text += ", and has had them copied"
        else:
            text += ", and the table is too large to be copied unasked: see `pgoutput snapshot`"
        rows = sum(map(len, one.second.values()))
        is_new = not known.difference
        known.difference = f"{counted(len(different), 'difference')} in {counted(rows, 'row')} compared"
        self._schedule.retry(oid, time.time(), seconds=3600.0)
        if mark_difference(self._replicated.target, oid, REASON, Difference(self._lsn, text)) or is_new:
            mark = Difference(self._lsn, f"{text} ({known.difference})")
            self._report(TableResult(oid, table.relation.namespace, table.relation.name, {}, (mark,)))

    def _is_marked(self, oid: int) -> bool:
        known = replica_table(self._replicated.target.place, oid)
        return known is not None and any(one.reason.startswith(REASON) for one in known.may_differ)

    def _wal_end(self, server: Server) -> tuple[int, int, int, str]:
        """Return the end of the WAL, the snapshot's xmin and xmax, and synchronous_standby_names."""
        ((lsn, xmin, xmax, names),) = server.query(_WAL_END)
        self._lsn = parse_lsn(lsn)
        return self._lsn, int(xmin), int(xmax), names

    def _await_visibility(self, server: Server) -> None:
        """Wait until transactions that the replica may have before the server shows them are visible.

        A commit that waits for a synchronous standby is sent before it is visible.
        """
        _, _, xmax, names = self._wal_end(server)
        self._stop.wait(_CONFIRM_SECONDS)
        if names:
            self._await(lambda: self._wal_end(server)[1] >= xmax)

    def _await(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true.

        Raises:
            ReplicationError: It did not become true in time.
        """
        end = time.monotonic() + _WAIT_SECONDS
        while not condition():
            if self._stop.wait(_TICK):
                raise ReplicationError("the self-check was stopped")
            if time.monotonic() > end:
                raise ReplicationError(f"the replica was not there within {_WAIT_SECONDS:.0f} seconds")

    def _tell(self, text: str) -> None:
        if text not in self._warned and not self._stop.is_set():
            self._warned.add(text)
            self._warn(text)
