"""Parse and execute the commands of the streaming replication protocol (repl_gram.y, walsender.c)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from logicalrep.standin import protocol
from logicalrep.standin.backend import Backend, ReplicationProgress, TransactionStatus
from logicalrep.standin.protocol import EncodedValue, Field, ServerError
from logicalrep.standin.replication.decoding import start_decoding
from logicalrep.standin.replication.plugin_options import parse_boolean
from logicalrep.standin.replication.scanner import OptionList, Scanner
from logicalrep.standin.replication.source_reader import SourceReader, encode_keepalive
from logicalrep.standin.replication.walsender import WalSender
from logicalrep.standin.server_state import ServerState
from logicalrep.standin.slots import Slot
from logicalrep.standin.values import INT4, INT8
from logicalrep.wire import format_lsn, parse_lsn

_CREATE_FIELDS: Final = tuple(map(Field, ("slot_name", "consistent_point", "snapshot_name", "output_plugin")))
_READ_FIELDS: Final = (Field("slot_type"), Field("restart_lsn"), Field("restart_tli", INT8))
_HISTORY_FIELDS: Final = (Field("filename"), Field("content"))
_FLAGS: Final = {"failover": (17, 17), "two_phase": (15, 18)}
"""First major versions that can set a slot option at creation, and alter it later; by option."""

_SINCE: Final = {"READ_REPLICATION_SLOT": 15, "ALTER_REPLICATION_SLOT": 17}
"""First major version that has a command, by command. Commands that are not listed exist in all versions."""

_UNSUPPORTED: Final = ("BASE_BACKUP", "UPLOAD_MANIFEST")
_NAME_KINDS: Final = ("word", "quoted")
_VALUE_KINDS: Final = ("string", "word", "number")
_LEGACY_OPTIONS: Final[Mapping[str, tuple[str, str | None]]] = {
    "EXPORT_SNAPSHOT": ("snapshot", "export"),
    "NOEXPORT_SNAPSHOT": ("snapshot", "nothing"),
    "USE_SNAPSHOT": ("snapshot", "use"),
    "RESERVE_WAL": ("reserve_wal", None),
    "TWO_PHASE": ("two_phase", None),
}
"""Option name and value in the syntax since PostgreSQL 15, by the keyword in the older syntax."""


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
        # SHOW is missing because it is executed as SQL.
        self._commands: Mapping[str, Callable[[Scanner], Awaitable[bytes]]] = {
            "IDENTIFY_SYSTEM": self._identify_system,
            "TIMELINE_HISTORY": self._timeline_history,
            "READ_REPLICATION_SLOT": self._read_slot,
            "CREATE_REPLICATION_SLOT": self._create_slot,
            "DROP_REPLICATION_SLOT": self._drop_slot,
            "ALTER_REPLICATION_SLOT": self._alter_slot,
            "START_REPLICATION": self._start_replication,
        }

    async def execute(self, text: str) -> bytes | None:
        """Execute a command and return the encoded response, or None if the text is an SQL statement.

        Raises:
            ServerError: The command has a syntax error, is not supported, or failed.
            Terminated: The connection must be closed without an error message.
            OSError: The connection is lost.
            IncompleteReadError: The connection ended inside a message.
        """
        first = re.match(r"\s*([A-Za-z_]+)", text)
        keyword = first[1].upper() if first else ""
        if keyword in _UNSUPPORTED:
            raise ServerError(
                "0A000", f"a stand-in server does not support {keyword}, which is not for logical replication"
            )
        if keyword not in self._commands:
            return None
        if self._server.major_version < _SINCE.get(keyword, 0):
            raise ServerError("42601", f'syntax error at or near "{keyword}"')
        scanner = Scanner(text)
        scanner.accept_keyword(keyword)
        return await self._commands[keyword](scanner)

    def _end_command(self, scanner: Scanner) -> None:
        """Check that the command ends here, and that the connection is not in a failed transaction."""
        scanner.expect_end()
        self._backend.check_transaction()

    async def _identify_system(self, scanner: Scanner) -> bytes:
        self._end_command(scanner)
        source = self._server.source
        database = self._backend.database if self._is_logical else None
        row = (source.system_identifier, str(self._server.timeline), format_lsn(source.end_lsn), database)
        timeline = Field("timeline", INT8 if self._server.major_version >= 16 else INT4)
        fields = (Field("systemid"), timeline, Field("xlogpos"), Field("dbname"))
        return _encode_result("IDENTIFY_SYSTEM", fields, row)

    async def _timeline_history(self, scanner: Scanner) -> bytes:
        timeline = int(scanner.expect("number"))
        self._end_command(scanner)
        name = f"{timeline:08X}.history"
        if not 1 < timeline <= self._server.timeline:
            raise ServerError("58P01", f'could not open file "pg_wal/{name}": No such file or directory')
        switches = enumerate(self._server.switch_lsns[: timeline - 1], 1)
        lines = (f"{number}\t{format_lsn(lsn)}\tno recovery target specified\n" for number, lsn in switches)
        return _encode_result("TIMELINE_HISTORY", _HISTORY_FIELDS, (name, "".join(lines)))

    async def _create_slot(self, scanner: Scanner) -> bytes:
        name = scanner.expect(*_NAME_KINDS)
        temporary = scanner.accept_keyword("TEMPORARY") is not None
        kind = scanner.accept_keyword("LOGICAL", "PHYSICAL")
        if kind is None:
            raise scanner.syntax_error()
        plugin = scanner.expect(*_NAME_KINDS) if kind == "LOGICAL" else None
        major_version = self._server.major_version
        given = scanner.option_list(*_VALUE_KINDS) if major_version >= 15 else []
        while word := scanner.accept_keyword(*_LEGACY_OPTIONS):
            if word == "TWO_PHASE" and major_version < 15:
                raise scanner.syntax_error()
            given.append(_LEGACY_OPTIONS[word])
        self._end_command(scanner)
        if plugin is None:
            text = "a stand-in server has logical slots only"
            raise ServerError("0A000", text, "Create the slot LOGICAL pgoutput.")
        self._check_database()
        options = dict(given)
        if len(options) < len(given) or "reserve_wal" in options:  # reserve_wal is for physical slots
            raise ServerError("42601", "conflicting or redundant options")
        known = [flag for flag, (since, _) in _FLAGS.items() if major_version >= since]
        flags = {flag: _parse_flag(flag, options.pop(flag)) for flag in known if flag in options}
        snapshot = options.pop("snapshot", "nothing")
        if options:
            raise ServerError("XX000", f"unrecognized option: {next(iter(options))}")
        if snapshot not in ("export", "use", "nothing"):
            text = f'unrecognized value for CREATE_REPLICATION_SLOT option "snapshot": "{snapshot}"'
            raise ServerError("22023", text)
        if snapshot == "use" and self._backend.transaction_status is not TransactionStatus.IN_TRANSACTION:
            option = "(SNAPSHOT 'use')" if major_version >= 15 else "USE_SNAPSHOT"
            text = f"CREATE_REPLICATION_SLOT ... {option} must be called inside a transaction"
            raise ServerError("XX000", text)
        if snapshot == "export":
            raise ServerError(
                "0A000",
                "a stand-in server has no tables, and so no snapshot to export",
                "Create the slot with SNAPSHOT 'nothing', and begin with the stream.",
            )
        if temporary and flags.get("failover"):
            raise ServerError("0A000", "cannot enable failover for a temporary replication slot")
        slot = self._server.create_slot(self._backend, name, plugin, temporary=temporary, **flags)
        row = (slot.name, format_lsn(slot.confirmed_flush_lsn), None, plugin)
        return _encode_result("CREATE_REPLICATION_SLOT", _CREATE_FIELDS, row)

    async def _read_slot(self, scanner: Scanner) -> bytes:
        name = scanner.expect(*_NAME_KINDS)
        self._end_command(scanner)
        if any(slot.name == name for slot in self._server.slots):
            raise ServerError("0A000", "cannot use READ_REPLICATION_SLOT with a logical replication slot")
        return _encode_result("READ_REPLICATION_SLOT", _READ_FIELDS, (None, None, None))

    async def _drop_slot(self, scanner: Scanner) -> bytes:
        name, waits = scanner.expect(*_NAME_KINDS), scanner.accept_keyword("WAIT") is not None
        self._end_command(scanner)
        if waits:
            await self._server.slots.drop_when_idle(name)
        else:
            self._server.slots.drop(name)
        return protocol.command_complete("DROP_REPLICATION_SLOT")

    async def _alter_slot(self, scanner: Scanner) -> bytes:
        name, options = scanner.expect(*_NAME_KINDS), scanner.option_list(*_VALUE_KINDS)
        self._end_command(scanner)
        slot = self._server.acquire_slot(name, self._backend)
        slot.active_pid = None
        known = [flag for flag, (_, since) in _FLAGS.items() if self._server.major_version >= since]
        flags = {}
        for flag, value in options:
            if flag not in known:
                raise ServerError("XX000", f"unrecognized option: {flag}")
            flags[flag] = _parse_flag(flag, value)
        for flag, is_on in flags.items():
            setattr(slot, flag, is_on)
        return protocol.command_complete("ALTER_REPLICATION_SLOT")

    async def _start_replication(self, scanner: Scanner) -> bytes:
        name = scanner.expect(*_NAME_KINDS) if scanner.accept_keyword("SLOT") else None
        logical = scanner.accept_keyword("LOGICAL") is not None
        if not logical:
            scanner.accept_keyword("PHYSICAL")
        lsn = parse_lsn(scanner.expect("lsn"))
        if not logical and scanner.accept_keyword("TIMELINE"):
            scanner.expect("number")
        given = scanner.option_list("string") if logical else []
        self._end_command(scanner)
        if not logical or name is None:
            raise ServerError(
                "0A000",
                "a stand-in server streams from logical slots only: use START_REPLICATION SLOT name LOGICAL",
            )
        self._check_database()
        slot = self._server.acquire_slot(name, self._backend)
        try:
            await self._stream(slot, given, lsn)
        finally:
            self._backend.replication = None
            await self._server.slots.release(slot)
        # A server sends two CommandComplete messages: libpqrcv_endstreaming waits for both.
        ends = map(protocol.command_complete, ("COPY 0", "START_REPLICATION"))
        return protocol.encode_message(b"c") + b"".join(ends)

    async def _stream(self, slot: Slot, given: OptionList, lsn: int) -> None:
        """Stream from a slot until the client ends the stream.

        Args:
            slot: The slot.
            given: Plugin options as written in the command.
            lsn: LSN in the command. The stream starts after the slot's acknowledged LSN if that is higher.
        """
        server, backend = self._server, self._backend
        after_lsn = max(slot.confirmed_flush_lsn, lsn)
        begins_early = server.major_version < 11
        if begins_early:  # PostgreSQL 10 parses the plugin options after this response
            self._writer.write(protocol.copy_both_response())
        options, envelopes = start_decoding(server, slot, given, after_lsn)
        slot.two_phase = options.two_phase  # only now: a refused request does not change the slot
        source_reader = SourceReader(
            envelopes, server.faults, slot.progress, after_lsn, options.proto_version
        )
        backend.replication = ReplicationProgress(slot, after_lsn, after_lsn)
        walsender = WalSender(
            backend.replication,
            source_reader,
            server,
            self._reader,
            self._writer,
        )
        opening = b"" if begins_early else protocol.copy_both_response()
        if slot.confirmed_flush_lsn > server.source.start_lsn and not server.faults.stall_keepalive:
            # A subscriber's apply worker passes the last LSN that it received to its table synchronization
            # workers, which stop at this LSN. After a reconnect, the apply worker has not received an LSN:
            # without this keepalive, the table synchronization workers would stop too early.
            opening += encode_keepalive(after_lsn, reply_requested=False)
        self._writer.write(opening)
        await walsender.run()

    def _check_database(self) -> None:
        if not self._is_logical:
            raise ServerError("55000", "logical decoding requires a database connection")


def _parse_flag(flag: str, value: str | None) -> bool:
    """Parse the Boolean value of a slot option. 0 and 1 are also valid, unlike in a plugin option."""
    return value == "1" if value in ("0", "1") else parse_boolean(flag, value)


def _encode_result(tag: str, fields: tuple[Field, ...], row: tuple[str | None, ...]) -> bytes:
    values: list[EncodedValue] = [None if value is None else value.encode() for value in row]
    return protocol.row_description(fields) + protocol.data_row(values) + protocol.command_complete(tag)
