"""What a walsender does with the commands of the streaming replication protocol (walsender.c)."""

from __future__ import annotations

import asyncio
from typing import Final

from pgoutput.errors import PgoutputError
from pgoutput.standin import commands, protocol
from pgoutput.standin.commands import (
    AlterSlot,
    Command,
    CreateSlot,
    DropSlot,
    IdentifySystem,
    ReadSlot,
    StartReplication,
    boolean,
)
from pgoutput.standin.options import read_options
from pgoutput.standin.protocol import Field, Refused, Value
from pgoutput.standin.pump import Pump
from pgoutput.standin.source import Wanted
from pgoutput.standin.sql.settings import version_number
from pgoutput.standin.sql.statements import Backend
from pgoutput.standin.sql.values import INT8
from pgoutput.standin.streaming import WalSender
from pgoutput.wire import format_lsn

_IDENTIFIED: Final = (Field("systemid"), Field("timeline", INT8), Field("xlogpos"), Field("dbname"))
_CREATED: Final = (
    *(Field("slot_name"), Field("consistent_point"), Field("snapshot_name"), Field("output_plugin")),
)
_READ: Final = (Field("slot_type"), Field("restart_lsn"), Field("restart_tli", INT8))
_ALTERABLE: Final = ("failover", "two_phase")


class Replication:
    """The commands of one connection.

    Args:
        backend: The connection.
        is_logical: Whether it is to a database; logical decoding needs one.
    """

    def __init__(self, backend: Backend, *, is_logical: bool) -> None:
        self._backend = backend
        self._hub = backend.hub
        self._is_logical = is_logical

    async def run(
        self, text: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        """Run a command; give the answer, or None if it is none, but SQL.

        Raises:
            Refused: It is refused.
            Terminated: The connection is to end.
            OSError: The connection is lost.
            IncompleteReadError: Likewise.
        """
        command = commands.parse_command(text)
        if command is None:
            return None
        if self._backend.status == b"E":
            raise Refused(
                "25P02", "current transaction is aborted, commands ignored until end of transaction block"
            )
        if isinstance(command, StartReplication):
            return await self._start(command, reader, writer)
        return await self._answer(command)

    async def _answer(self, command: Command) -> bytes:
        match command:
            case IdentifySystem():
                source = self._hub.source
                database = self._backend.database if self._is_logical else None
                row = (source.system_identifier, "1", format_lsn(source.end_lsn), database)
                return _result("IDENTIFY_SYSTEM", _IDENTIFIED, row)
            case CreateSlot():
                return _result("CREATE_REPLICATION_SLOT", _CREATED, self._create(command))
            case ReadSlot():
                return _result("READ_REPLICATION_SLOT", _READ, self._read(command))
            case DropSlot():
                if command.wait:
                    await self._hub.slots.drop_when_idle(command.slot)
                else:
                    self._hub.slots.drop(command.slot)
                return protocol.command_complete("DROP_REPLICATION_SLOT")
            case _:
                assert isinstance(command, AlterSlot)
                self._alter(command)
                return protocol.command_complete("ALTER_REPLICATION_SLOT")

    def _create(self, command: CreateSlot) -> tuple[str | None, ...]:
        if command.plugin is None:
            raise Refused("0A000", "a stand-in has logical slots only", "Create the slot LOGICAL pgoutput.")
        self._need_database()
        given = dict(command.options)
        if len(given) < len(command.options):
            raise Refused("42601", "conflicting or redundant options")
        flags = {name: boolean(name, given.pop(name)) for name in _ALTERABLE if name in given}
        snapshot = given.pop("snapshot", "nothing")
        if given:
            raise Refused("XX000", f"unrecognized option: {next(iter(given))}")
        if snapshot not in ("export", "use", "nothing"):
            text = f'unrecognized value for CREATE_REPLICATION_SLOT option "snapshot": "{snapshot}"'
            raise Refused("22023", text)
        if snapshot != "nothing":
            raise Refused(
                "0A000",
                f"a stand-in has no tables, and so no snapshot to {snapshot}",
                "Create the slot with SNAPSHOT 'nothing', and begin with the stream.",
            )
        two_phase, failover = flags.get("two_phase", False), flags.get("failover", False)
        slot = self._backend.create_slot(command.slot, command.plugin, command.temporary, two_phase, failover)
        return slot.name, format_lsn(slot.confirmed_flush_lsn), None, command.plugin

    def _read(self, command: ReadSlot) -> tuple[str | None, ...]:
        if any(slot.name == command.slot for slot in self._hub.slots):
            raise Refused("0A000", "cannot use READ_REPLICATION_SLOT with a logical replication slot")
        return None, None, None

    def _alter(self, command: AlterSlot) -> None:
        slot = self._hub.slots.acquire(command.slot, self._backend.pid, self._backend.database)
        slot.active_pid = None
        for name, value in command.options:
            if name not in _ALTERABLE:
                raise Refused("XX000", f"unrecognized option: {name}")
            setattr(slot, name, boolean(name, value))

    async def _start(
        self, command: StartReplication, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        hub, backend = self._hub, self._backend
        if not command.logical or command.slot is None:
            raise Refused("0A000", "a stand-in streams from logical slots only")
        self._need_database()
        slot = hub.slots.acquire(command.slot, backend.pid, backend.database)
        try:
            hub.check_plugin("pgoutput")
            major = version_number(hub.source.server_version) // 10_000
            wanted = read_options(command.options, major, slot.two_phase)
            self._check_publications(wanted)
            slot.two_phase = wanted.two_phase
            after = max(slot.confirmed_flush_lsn, command.lsn)
            try:
                messages = hub.source.start(wanted, after)
            except PgoutputError as error:
                raise Refused("0A000", str(error)) from None
            except Exception as error:  # as in WalSender
                text = f"the stand-in's source has failed: {type(error).__name__}: {error}"
                raise Refused("XX000", text) from None
            pump = Pump(messages, hub.faults, slot.progress, after)
            sender = hub.senders[backend.pid] = WalSender(backend, slot, pump, after)
            writer.write(protocol.copy_both_response())
            await sender.run(reader, writer)
        finally:
            hub.senders.pop(backend.pid, None)
            await hub.slots.release(slot)
        # Two, as the server sends them: libpqrcv_endstreaming waits for both.
        ends = map(protocol.command_complete, ("COPY 0", "START_REPLICATION"))
        return protocol.message(b"c") + b"".join(ends)

    def _check_publications(self, wanted: Wanted) -> None:
        known = self._hub.source.publications
        for name in wanted.publication_names:
            if known is not None and name not in known:
                hint = f"The stream was recorded with the publications {', '.join(known)}."
                raise Refused("42704", f'publication "{name}" does not exist', hint)

    def _need_database(self) -> None:
        if not self._is_logical:
            raise Refused("55000", "logical decoding requires a database connection")


def _result(tag: str, fields: tuple[Field, ...], row: tuple[str | None, ...]) -> bytes:
    values: list[Value] = [None if value is None else value.encode() for value in row]
    return protocol.row_description(fields) + protocol.data_row(values) + protocol.command_complete(tag)
