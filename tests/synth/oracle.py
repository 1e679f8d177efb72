"""Run programs (sequences of database operations) on a real server and receive the server's stream.

After each step the test waits until the walsender has caught up, so that the walsender decodes each record
with the catalog state at that time.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from logicalrep import envelope
from logicalrep.messages import Message, PrimaryKeepalive, StandbyStatusUpdate, XLogData
from logicalrep.synth import StreamOptions
from logicalrep.synth.programs import Program, Step, TableDefinition
from logicalrep.synth.programs.definition import Values
from logicalrep.synth.programs.generator import LABELS
from logicalrep.wire import parse_lsn
from tests.server import Server

_STREAMED: Final = {
    True: "-c debug_logical_replication_streaming=immediate",
    False: "-c debug_logical_replication_streaming=buffered",
}
"""Connection options of the walsender, by whether each change is streamed immediately."""

FIRST_IMMEDIATE: Final = 16
"""First major version of PostgreSQL with debug_logical_replication_streaming."""

FIRST_WITH_FLUSH: Final = 17
"""First major version of PostgreSQL whose function pg_logical_emit_message can flush the WAL."""

FLUSH: Final = "flushed by the test"
"""Prefix of the logical messages that the oracle emits to flush the WAL."""

_ASK_SECONDS: Final = 0.02
"""Seconds without data after which the walsender is asked for its position."""

_PATIENCE: Final = 60.0
"""Maximum duration of a step, in seconds."""


class Oracle:
    """Runs programs (sequences of database operations) on a server and returns the streams sent.

    Attributes:
        version: Major version of the server.

    Args:
        server: A running server without autovacuum, which would cause additional Relation messages.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.version: int = server.version
        self._number = 0

    @property
    def schema(self) -> str:
        """Name of the schema with the tables of the last program."""
        return f"p{self._number}"

    def play(
        self,
        program: Program,
        options: StreamOptions,
        via_root: bool,
        *,
        generated: str = "none",
        immediate: bool = True,
    ) -> list[XLogData]:
        """Return the envelopes that the server sends for a program.

        Args:
            program: The tables to create and the steps to execute.
            options: Stream options.
            via_root: The publication's publish_via_partition_root.
            generated: The publication's publish_generated_columns: `none` or `stored`.
            immediate: Whether each change is streamed immediately, if streaming is on.
        """
        self._number += 1
        settings = {"publish_via_partition_root": str(via_root)}
        if generated != "none":
            settings["publish_generated_columns"] = generated  # PostgreSQL 18 and later
        with _Run(self._server, program, options, settings, immediate, self.schema) as run:
            for step in program.steps:
                run.do(step)
        return run.sent


class _Run:
    """A program that is running: the connections to the server, and the envelopes received."""

    def __init__(
        self,
        server: Server,
        program: Program,
        options: StreamOptions,
        publication: Mapping[str, str],
        immediate: bool,
        name: str,
    ) -> None:
        self._server, self._program, self._options = server, program, options
        self._publication = publication
        self._immediate, self._name = immediate, name
        self._origins: dict[int, str] = {}
        self._depth = dict.fromkeys((0, 1, 2), 0)
        self._prepared_origin: dict[str, str | None] = {}
        self.sent: list[XLogData] = []
        self._heard_lsn = 0

    def __enter__(self) -> _Run:
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._control = stack.enter_context(self._server.connect())
            self._slots = [stack.enter_context(self._server.connect()) for _ in range(3)]
            for connection in self._slots:
                connection.execute("SET lock_timeout = '2s'")
            self._create()
            options = _STREAMED[self._immediate] if self._server.version >= FIRST_IMMEDIATE else ""
            dsn = make_conninfo(self._server.dsn, replication="database", options=options)
            self._walsender = pq.PGconn.connect(dsn.encode())
            assert self._walsender.status == pq.ConnStatus.OK, self._walsender.error_message
            stack.callback(self._walsender.finish)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._stack:  # a prepared transaction would block the next slot's creation
            for (gid,) in self._control.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                self._control.execute(f"ROLLBACK PREPARED '{gid}'")

    # The program

    def do(self, step: Step) -> None:
        connection = self._slots[step.connection]
        match step:
            case Step(slot, "db.transaction", options=options):
                origin = options.get("origin")
                self._set_origin(slot, origin)
                connection.execute("BEGIN")
                if origin is not None:
                    self._set_origin_lsn(connection, options["origin_lsn"])
                self._depth[slot] = 0
            case Step(slot, "release" | "rollback") if self._depth[slot]:
                point = f"SAVEPOINT s{self._depth[slot]}"
                if step.method == "rollback":
                    connection.execute(f"ROLLBACK TO {point}")
                connection.execute(f"RELEASE {point}")
                self._depth[slot] -= 1
            case Step(_, "commit" | "rollback"):
                with self._stopped_walsender():
                    connection.execute(step.method)
            case Step(slot, "savepoint"):
                self._depth[slot] += 1
                connection.execute(f"SAVEPOINT s{self._depth[slot]}")
            case Step(slot, "prepare", arguments=(gid,)):
                self._prepared_origin[gid] = self._origins.get(slot)
                connection.execute(f"PREPARE TRANSACTION '{self._name} {gid}'")
            case Step(slot, "db.commit_prepared" | "db.rollback_prepared", arguments=(gid,)):
                self._set_origin(slot, self._prepared_origin[gid])
                if self._prepared_origin[gid] is not None:
                    self._set_origin_lsn(connection, 16)
                verb = step.method.removeprefix("db.").replace("_", " ")
                with self._stopped_walsender():
                    connection.execute(f"{verb} '{self._name} {gid}'")
            case Step(_, "insert", (table,), (values,)):
                columns, texts = ", ".join(values), ", ".join(map(_literal, values.values()))
                self._one(
                    connection, f"INSERT INTO {self._table(connection, table)} ({columns}) VALUES ({texts})"
                )
            case Step(_, "copy", (table,), (rows,)):
                columns = ", ".join(rows[0])
                command = f"COPY {self._table(connection, table)} ({columns}) FROM STDIN"
                with connection.cursor() as cursor, cursor.copy(command) as copy:
                    for values in rows:
                        copy.write_row(tuple(values.values()))
            case Step(_, "update", (table,), (where,), values):
                assigned = ", ".join(f"{name} = {_literal(text)}" for name, text in values.items())
                row = self._row(connection, table, where)
                self._one(connection, f"UPDATE {self._table(connection, table)} SET {assigned} {row}")
            case Step(_, "delete", (table,), (where,)):
                self._one(
                    connection,
                    f"DELETE FROM {self._table(connection, table)} {self._row(connection, table, where)}",
                )
            case Step(_, "truncate", tables, options=options):
                named = ", ".join(self._table(connection, table) for table in tables)
                identity = "RESTART IDENTITY" if "restart_identity" in options else ""
                connection.execute(f"TRUNCATE {named} {identity} {'CASCADE' if 'cascade' in options else ''}")
            case Step(_, "alter", (table,), options=changes):
                self._alter(connection, table, changes)
            case Step(_, "message" | "db.message", arguments=(prefix, content)):
                transactional = step.method == "message"
                one = connection if transactional else self._control
                one.execute("SELECT pg_logical_emit_message(%s, %s, %s)", [transactional, prefix, content])
        self._wait()

    @staticmethod
    def _one(connection: psycopg.Connection, statement: str) -> None:
        assert connection.execute(statement).rowcount == 1, statement

    def _row(self, connection: psycopg.Connection, table: str, where: Values) -> str:
        conditions = " AND ".join(
            f"{name} IS NOT DISTINCT FROM {_literal(text)}" for name, text in where.items()
        )
        name = self._table(connection, table)
        one = f"SELECT tableoid, ctid FROM {name} WHERE {conditions} LIMIT 1"
        return f"WHERE (tableoid, ctid) = ({one})"

    def _table(self, connection: psycopg.Connection, name: str) -> str:
        """Return the present name of a table with its schema, as seen by the connection's transaction."""
        row = connection.execute("SELECT relname FROM pg_class WHERE oid = %s", [self._oids[name]]).fetchone()
        assert row is not None
        return f"{self._name}.{row[0]}"

    def _alter(self, connection: psycopg.Connection, table: str, changes: dict[str, Any]) -> None:
        parts = [f"ADD COLUMN {name} {self._type(type_)}" for name, type_ in changes.get("add", {}).items()]
        stored = [name for name, type_ in changes.get("add", {}).items() if _is_variable(type_)]
        parts += [f"ALTER COLUMN {name} SET STORAGE EXTERNAL" for name in stored]
        parts += [f"DROP COLUMN {name}" for name in changes.get("drop", ())]
        parts += [f"ALTER COLUMN {name} TYPE {type_}" for name, type_ in changes.get("retype", {}).items()]
        if "replica_identity" in changes:
            parts.append(f"REPLICA IDENTITY {changes['replica_identity']}")
        if parts:
            connection.execute(f"ALTER TABLE {self._table(connection, table)} {', '.join(parts)}")
        for old, new in changes.get("rename", {}).items():
            connection.execute(f"ALTER TABLE {self._table(connection, table)} RENAME {old} TO {new}")
        if "name" in changes:
            connection.execute(f"ALTER TABLE {self._table(connection, table)} RENAME TO {changes['name']}")

    # Origins

    def _set_origin(self, slot: int, origin: str | None) -> None:
        if self._origins.get(slot) == origin:
            return
        connection = self._slots[slot]
        if slot in self._origins:
            connection.execute("SELECT pg_replication_origin_session_reset()")
            del self._origins[slot]
        if origin is not None:
            connection.execute("SELECT pg_replication_origin_session_setup(%s)", [origin])
            self._origins[slot] = origin

    @staticmethod
    def _set_origin_lsn(connection: psycopg.Connection, lsn: int) -> None:
        connection.execute(
            "SELECT pg_replication_origin_xact_setup(('0/0'::pg_lsn + %s::numeric), now())", [lsn]
        )

    # The server

    def _create(self) -> None:
        execute: Any = self._control.execute
        execute(f"CREATE SCHEMA {self._name}")
        for enum in self._program.enums:
            labels = ", ".join(map(_literal, LABELS))
            execute(f"CREATE TYPE {self._local(enum)} AS ENUM ({labels})")
        for domain, base in self._program.domains.items():
            execute(f"CREATE DOMAIN {self._local(domain)} AS {base}")
        for table in self._program.tables:
            self._create_table(table)
        published = ", ".join(self._published(table) for table in self._program.tables if table.published)
        settings = ", ".join(f"{name} = {value}" for name, value in self._publication.items())
        tables = f"FOR TABLE {published}" if published else ""
        execute(f"CREATE PUBLICATION {self._name} {tables} WITH ({settings})")
        rows = [
            execute("SELECT %s::regclass::oid", [self._local(t.name)]).fetchone()
            for t in self._program.tables
        ]
        self._oids = {table.name: row[0] for table, row in zip(self._program.tables, rows, strict=True)}

    def _create_table(self, table: TableDefinition) -> None:
        execute: Any = self._control.execute
        name = self._local(table.name)
        columns = [f"{c} {self._type(declared)}" for c, declared in table.columns.items()]
        key = [c for c, declared in table.columns.items() if declared.endswith(" key")]
        columns += [
            f"{generated} {self._type(table.columns[source])} GENERATED ALWAYS AS ({source}) STORED"
            for generated, source in (table.generated or {}).items()
        ]
        columns += [f"PRIMARY KEY ({', '.join(key)})"] if key else []
        by = f"PARTITION BY LIST ({table.partition_by})" if table.partition_by else ""
        execute(f"CREATE TABLE {name} ({', '.join(columns)}) {by}")
        parts = []
        for part, values in (table.partitions or {}).items():
            parts.append(f"{self._name}.{part}")
            inside = ", ".join(map(_literal, values))
            execute(f"CREATE TABLE {parts[-1]} PARTITION OF {name} FOR VALUES IN ({inside})")
        for one in (name, *parts):
            for column, declared in table.columns.items():
                if _is_variable(declared):
                    execute(f"ALTER TABLE {one} ALTER {column} SET STORAGE EXTERNAL")
            if isinstance(table.replica_identity, str):
                execute(f"ALTER TABLE {one} REPLICA IDENTITY {table.replica_identity}")
            else:
                index = f"{one.partition('.')[2]}_index"
                for column in table.replica_identity:
                    execute(f"ALTER TABLE {one} ALTER {column} SET NOT NULL")
                execute(f"CREATE UNIQUE INDEX {index} ON {one} ({', '.join(table.replica_identity)})")
                execute(f"ALTER TABLE {one} REPLICA IDENTITY USING INDEX {index}")

    def _published(self, table: TableDefinition) -> str:
        columns = f"({', '.join(table.column_list)})" if table.column_list is not None else ""
        where = "WHERE ({} {} {})".format(*table.where) if table.where is not None else ""
        return f"{self._local(table.name)} {columns} {where}"

    def _local(self, name: str) -> str:
        return f"{self._name}.{name.partition('.')[2]}"

    def _type(self, declared: str) -> str:
        type_ = declared.removesuffix(" key")
        return self._local(type_) if type_.partition(".")[1] else type_

    # The walsender

    def _start(self) -> None:
        asked = {
            "proto_version": str(self._options.proto_version),
            "publication_names": self._name,
            **self._options.requested(),
        }
        options = ", ".join(f"{name} '{value}'" for name, value in asked.items())
        two_phase = ", TWO_PHASE" if self._options.two_phase else ""
        slot = (
            f"CREATE_REPLICATION_SLOT {self._name} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing'{two_phase})"
        )
        created = self._walsender.exec_(slot.encode())
        assert created.status == pq.ExecStatus.TUPLES_OK, self._walsender.error_message
        started = self._walsender.exec_(
            f"START_REPLICATION SLOT {self._name} LOGICAL 0/0 ({options})".encode()
        )
        assert started.status == pq.ExecStatus.COPY_BOTH, self._walsender.error_message
        self._pid = self._walsender.backend_pid

    @contextmanager
    def _stopped_walsender(self) -> Iterator[None]:
        """Suspend the walsender in the `with` block, to decode a commit after all cache invalidations."""
        os.kill(self._pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._pid, signal.SIGCONT)

    def _wait(self) -> None:
        """Wait until the walsender has decoded the whole WAL."""
        flush = "SELECT pg_logical_emit_message(false, %s, '', true)"
        if self._server.version < FIRST_WITH_FLUSH:  # the commit of a transaction with an xid flushes the WAL
            flush = "SELECT pg_logical_emit_message(false, %s, ''), txid_current()"
        row = self._control.execute(flush, [FLUSH]).fetchone()
        assert row is not None
        target, deadline = parse_lsn(row[0]), time.monotonic() + _PATIENCE
        while self._heard_lsn < target:
            assert time.monotonic() < deadline, "the walsender does not get on"
            size, data = self._walsender.get_copy_data(1)
            if size > 0:
                self._take(envelope.decode(bytes(data)))
            elif size < 0:
                raise AssertionError(self._walsender.error_message)
            else:
                if not select.select([self._walsender.socket], [], [], _ASK_SECONDS)[0]:
                    ask = StandbyStatusUpdate(
                        written_lsn=0, flushed_lsn=0, applied_lsn=0, send_time=0, reply_requested=True
                    )
                    self._walsender.put_copy_data(envelope.encode(ask))
                    self._walsender.flush()
                self._walsender.consume_input()

    def _take(self, message: Message) -> None:
        if isinstance(message, PrimaryKeepalive):
            self._heard_lsn = max(self._heard_lsn, message.wal_end)
        elif isinstance(message, XLogData):
            self.sent.append(message)


def _literal(text: str | None) -> str:
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


def _is_variable(declared: str) -> bool:
    return (
        declared.removesuffix(" key").endswith("[]")
        or declared.partition("(")[0].removesuffix(" key") in _VARIABLE
    )


_VARIABLE: Final = frozenset(("bytea", "json", "jsonb", "numeric", "text", "varchar"))
