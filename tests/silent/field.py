"""Run many cases of DDL beside one recorder, and compare the replica with the server afterwards.

The comparison shares no code with what decides whether tables are copied: it reads the server's own texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from psycopg.errors import FeatureNotSupported

from logicalrep.recorder import Connected, Event, Progress, TableComplete, TableIncomplete, install_ddl_events
from logicalrep.replica import ReplicaTable, replica_tables, replicate
from logicalrep.wire import parse_lsn
from tests.recorder.lab import Lab, Recording, wait_until
from tests.replica.tables import read_table, row_texts


class Case(Protocol):
    """A case; `tests.silent.cases.Case` documents the attributes."""

    @property
    def before(self) -> str: ...
    @property
    def after(self) -> tuple[str, ...]: ...
    @property
    def copied(self) -> bool | None: ...
    @property
    def since(self) -> int: ...


class Field:
    """Tables of many cases, each in a schema of its own, which a recorder and a replica follow.

    Attributes:
        schemas: Names of the cases, by the schema of each.

    Args:
        lab: The test database.
        target: Folder of the replica.
        cases: The cases by name; those that the server is too old for are left out.
        ddl_events: Whether the event trigger is installed.
        history: Whether the replica keeps all versions of rows.
    """

    def __init__(
        self,
        lab: Lab,
        target: Path,
        cases: Mapping[str, Case],
        *,
        ddl_events: bool = False,
        history: bool = False,
    ) -> None:
        self._cases = {name: one for name, one in cases.items() if one.since <= lab.version}
        self.schemas: dict[str, str] = {}
        self._lab, self._target, self._history = lab, target, history
        for way in ("running", "stopped"):
            for number, (name, case) in enumerate(self._cases.items()):
                schema = f"{way}_{number}"
                lab.run(f"CREATE SCHEMA {schema}", f"SET search_path TO {schema}, public")
                with suppress(FeatureNotSupported):  # a server without libxml
                    lab.run(case.before)
                    self.schemas[schema] = name
        options = "WITH (publish_via_partition_root)" if lab.version >= 13 else ""
        lab.run(f"CREATE PUBLICATION p FOR ALL TABLES {options}", "SET search_path TO DEFAULT")
        if ddl_events:
            install_ddl_events(lab.dsn)

    def run(self) -> list[str]:
        """Run all cases, half of them while no recorder runs; return a text for each wrong one."""
        with self._lab.recording(snapshot=True) as recording:
            self._settle(recording)
            begin = len(recording.events)
            self._replicate()
            self._run_all("running", recording)
            self._settle(recording)
        events = recording.events[begin:]
        self._run_all("stopped")
        with self._lab.recording(snapshot=True) as recording:
            recording.wait(Connected)
            self._settle(recording)
        events += recording.events + self._lab.record(snapshot=True)
        self._replicate()
        told = {one.table: one.reason for one in reversed(events) if isinstance(one, TableIncomplete)}
        tables = replica_tables(self._target)
        return [
            text
            for schema in self.schemas
            if (text := self._wrong(schema, tables, told.get(f"{schema}.t", "")))
        ]

    def _run_all(self, way: str, recording: Recording | None = None) -> None:
        left = {schema: [*self._cases[name].after] for schema, name in self.schemas.items() if way in schema}
        while left:
            for schema, statements in [*left.items()]:
                self._lab.run(f"SET search_path TO {schema}, public")
                while statements and (statement := statements.pop(0)) != "...":
                    self._lab.run(statement)
                if not statements:
                    del left[schema]
            if left and recording is not None:
                self._await_reading(recording)
        self._lab.run("SET search_path TO DEFAULT")

    def _settle(self, recording: Recording) -> None:
        """Wait until a recorder has read the catalogs, and has copied all tables that it has to copy."""
        self._await_reading(recording)
        wait_until(lambda: not _incomplete(recording.events))

    def _await_reading(self, recording: Recording) -> None:
        lsn, begin = self._lab.lsn(), len(recording.events)
        wait_until(
            lambda: any(
                isinstance(one, Progress) and one.wal_lsn and parse_lsn(one.wal_lsn) >= lsn
                for one in recording.events[begin:]
            )
        )

    def _replicate(self) -> None:
        replicate(self._lab.folder, self._target, history=self._history)

    def _wrong(self, schema: str, tables: Mapping[int, ReplicaTable], told: str) -> str:
        """Return what is wrong with a case, as a text that begins with its name; empty for nothing."""
        name = self.schemas[schema]
        lab, copied = self._lab, self._cases[name].copied
        query = f"WHERE attrelid = '{schema}.t'::regclass AND attnum > 0 AND NOT attisdropped"
        query += " AND attgenerated = ''" if lab.version >= 12 else ""
        columns = [one for (one,) in lab.rows(f"SELECT attname FROM pg_attribute {query} ORDER BY attnum")]
        values = ", ".join(
            f"CASE WHEN {one} IS DISTINCT FROM NULL THEN format('%s', {one}) END" for one in columns
        )
        expected = lab.rows(f"SELECT {values} FROM {schema}.t")
        oid = lab.value(f"SELECT '{schema}.t'::regclass::oid::int8")
        table = tables.get(oid)
        rows = [] if table is None else map(row_texts, read_table(table.place).to_pylist())
        found = [tuple(map(row.get, columns)) for row in rows if row.get("__END_AT") is None]
        texts = []
        if sorted(map(str, found)) != sorted(map(str, expected)):
            texts.append(f"{found} instead of {expected}")
        if table is not None and table.may_differ:
            texts.append(f"may differ: {table.may_differ}")
        if copied is not None and copied != bool(told):
            texts.append(f"copied: {told}" if told else "not copied")
        return f"{name} ({schema}): {'; '.join(texts)}" if texts else ""


def _incomplete(events: Sequence[Event]) -> set[str]:
    """Return the names of the tables that a recorder has reported as incomplete, and not yet as complete."""
    found: set[str] = set()
    for one in events:
        if isinstance(one, TableIncomplete):
            found.add(one.table)
        elif isinstance(one, TableComplete):
            found.discard(one.table)
    return found
