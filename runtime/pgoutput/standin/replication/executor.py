"""Execute the commands of the streaming replication protocol (walsender.c)."""

from __future__ import annotations

import asyncio
from typing import Final

from pgoutput.errors import PgoutputError
from pgoutput.standin import protocol
from pgoutput.standin.backend import Backend, ReplicationProgress
from pgoutput.standin.protocol import EncodedValue, Field, ServerError
from pgoutput.standin.replication.commands import (
    AlterSlot,
    Command,
    CreateSlot,
    DropSlot,
    IdentifySystem,
    ReadSlot,
    StartReplication,
    parse_command,
)
from pgoutput.standin.replication.plugin_options import parse_boolean, parse_plugin_options
from pgoutput.standin.replication.source_reader import SourceReader
from pgoutput.standin.replication.walsender import WalSender, source_failed
from pgoutput.standin.server_state import ServerState
from pgoutput.standin.settings import version_number
from pgoutput.standin.source import PluginOptions
from pgoutput.standin.values import INT8
from pgoutput.wire import format_lsn

_IDENTIFY_FIELDS: Final = (Field("systemid"), Field("timeline", INT8), Field("xlogpos"), Field("dbname"))
_CREATE_FIELDS: Final = (
    *(Field("slot_name"), Field("consistent_point"), Field("snapshot_name"), Field("output_plugin")),
)
_READ_FIELDS: Final = (Field("slot_type"), Field("restart_lsn"), Field("restart_tli", INT8))
_ALTERABLE_FLAGS: Final = ("failover", "two_phase")


class ReplicationExecutor:
    """Executes the replication commands of one connection.

    Args:
        server: State of the server.
        backend: State of the connection.
        is_logical: Whether the client connected to a database (replication=database), which logical
            decoding requires.
        reader: Stream that receives from the client.
        writer: Stream that sends to the client.
    """

    def __init__(
        self,
        server: ServerState,
        backend: Backend,
        *,
        is_logical: bool,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._server = server
        self._backend = backend
        self._is_logical = is_logical
        self._reader = reader
        self._writer = writer

    async def execute(self, text: str) -> bytes | None:
        """Execute a command and return the encoded response, or None if the text is an SQL statement.

        Raises:
            ServerError: The command failed.
            Terminated: The connection must be closed without an error message.
            OSError: The connection is lost.
            IncompleteReadError: The connection ended inside a message.
        """
        command = parse_command(text)
        if command is None:
            return None
        self._backend.check_transaction()
        if isinstance(command, StartReplication):
            return await self._start_replication(command)
        return await self._execute(command)

    async def _execute(self, command: Command) -> bytes:
        match command:
            case IdentifySystem():
                source = self._server.source
                database = self._backend.database if self._is_logical else None
                row = (source.system_identifier, "1", format_lsn(source.end_lsn), database)
                return _encode_result("IDENTIFY_SYSTEM", _IDENTIFY_FIELDS, row)
            case CreateSlot():
                return _encode_result("CREATE_REPLICATION_SLOT", _CREATE_FIELDS, self._create(command))
            case ReadSlot():
                return _encode_result("READ_REPLICATION_SLOT", _READ_FIELDS, self._read(command))
            case DropSlot():
                if command.wait:
                    await self._server.slots.drop_when_idle(command.slot)
                else:
                    self._server.slots.drop(command.slot)
                return protocol.command_complete("DROP_REPLICATION_SLOT")
            case _:
                assert isinstance(command, AlterSlot)
                self._alter(command)
                return protocol.command_complete("ALTER_REPLICATION_SLOT")

    def _create(self, command: CreateSlot) -> tuple[str | None, ...]:
        if command.plugin is None:
            text = "a stand-in server has logical slots only"
            raise ServerError("0A000", text, "Create the slot LOGICAL pgoutput.")
        self._check_database()
        options = dict(command.options)
        if len(options) < len(command.options):
            raise ServerError("42601", "conflicting or redundant options")
        flags = {name: parse_boolean(name, options.pop(name)) for name in _ALTERABLE_FLAGS if name in options}
        snapshot = options.pop("snapshot", "nothing")
        if options:
            raise ServerError("XX000", f"unrecognized option: {next(iter(options))}")
        if snapshot not in ("export", "use", "nothing"):
            text = f'unrecognized value for CREATE_REPLICATION_SLOT option "snapshot": "{snapshot}"'
            raise ServerError("22023", text)
        if snapshot != "nothing":
            raise ServerError(
                "0A000",
                f"a stand-in server has no tables, and so no snapshot to {snapshot}",
                "Create the slot with SNAPSHOT 'nothing', and begin with the stream.",
            )
        slot = self._server.create_slot(
            self._backend, command.slot, command.plugin, temporary=command.temporary, **flags
        )
        return slot.name, format_lsn(slot.confirmed_flush_lsn), None, command.plugin

    def _read(self, command: ReadSlot) -> tuple[str | None, ...]:
        if any(slot.name == command.slot for slot in self._server.slots):
            raise ServerError("0A000", "cannot use READ_REPLICATION_SLOT with a logical replication slot")
        return None, None, None

    def _alter(self, command: AlterSlot) -> None:
        slot = self._server.slots.acquire(command.slot, self._backend.pid, self._backend.database)
        slot.active_pid = None
        for name, value in command.options:
            if name not in _ALTERABLE_FLAGS:
                raise ServerError("XX000", f"unrecognized option: {name}")
            setattr(slot, name, parse_boolean(name, value))

    async def _start_replication(self, command: StartReplication) -> bytes:
        server, backend = self._server, self._backend
        if not command.logical or command.slot is None:
            raise ServerError("0A000", "a stand-in server streams from logical slots only")
        self._check_database()
        slot = server.slots.acquire(command.slot, backend.pid, backend.database)
        try:
            server.check_plugin("pgoutput")
            major_version = version_number(server.source.server_version) // 10_000
            options = parse_plugin_options(command.options, major_version, slot.two_phase)
            self._check_publications(options)
            slot.two_phase = options.two_phase
            after_lsn = max(slot.confirmed_flush_lsn, command.lsn)
            try:
                envelopes = server.source.start(options, after_lsn)
            except PgoutputError as error:
                raise ServerError("0A000", str(error)) from None
            except Exception as error:  # a source is user code and may raise any exception
                raise source_failed(error) from None
            source_reader = SourceReader(
                envelopes, server.faults, slot.progress, after_lsn, options.proto_version
            )
            backend.replication = ReplicationProgress(slot, after_lsn, after_lsn)
            walsender = WalSender(
                backend.replication,
                source_reader,
                server.sender_timeout,
                not server.faults.stall_keepalive,
                self._reader,
                self._writer,
            )
            self._writer.write(protocol.copy_both_response())
            await walsender.run()
        finally:
            backend.replication = None
            await server.slots.release(slot)
        # A server sends two CommandComplete messages: libpqrcv_endstreaming waits for both.
        ends = map(protocol.command_complete, ("COPY 0", "START_REPLICATION"))
        return protocol.encode_message(b"c") + b"".join(ends)

    def _check_publications(self, options: PluginOptions) -> None:
        publications = self._server.source.publications
        for name in options.publication_names:
            if publications is not None and name not in publications:
                hint = f"The stream was recorded with the publications {', '.join(publications)}."
                raise ServerError("42704", f'publication "{name}" does not exist', hint)

    def _check_database(self) -> None:
        if not self._is_logical:
            raise ServerError("55000", "logical decoding requires a database connection")


def _encode_result(tag: str, fields: tuple[Field, ...], row: tuple[str | None, ...]) -> bytes:
    values: list[EncodedValue] = [None if value is None else value.encode() for value in row]
    return protocol.row_description(fields) + protocol.data_row(values) + protocol.command_complete(tag)
