"""Parse the commands of the streaming replication protocol (repl_gram.y)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from pgoutput.standin.protocol import ServerError
from pgoutput.standin.replication.scanner import OptionList, Scanner
from pgoutput.wire import parse_lsn


class IdentifySystem(msgspec.Struct, frozen=True):
    """An IDENTIFY_SYSTEM command."""


class ReadSlot(msgspec.Struct, frozen=True):
    """A READ_REPLICATION_SLOT command."""

    slot: str
    """Name of the slot."""


class CreateSlot(msgspec.Struct, frozen=True):
    """A CREATE_REPLICATION_SLOT command."""

    slot: str
    """Name of the slot."""
    temporary: bool
    """Whether the slot is dropped at the end of the connection."""
    plugin: str | None
    """Name of the output plugin, or None for a physical slot."""
    options: OptionList
    """Pairs of option name and value. Keywords from before PostgreSQL 15 are converted to such pairs."""


class DropSlot(msgspec.Struct, frozen=True):
    """A DROP_REPLICATION_SLOT command."""

    slot: str
    """Name of the slot."""
    wait: bool
    """Whether to wait until the slot is inactive before it is dropped."""


class AlterSlot(msgspec.Struct, frozen=True):
    """An ALTER_REPLICATION_SLOT command."""

    slot: str
    """Name of the slot."""
    options: OptionList
    """Pairs of name and new value for the slot's flags two_phase and failover."""


class StartReplication(msgspec.Struct, frozen=True):
    """A START_REPLICATION command."""

    slot: str | None
    """Name of the slot, or None for physical replication without a slot."""
    lsn: int
    """LSN at which the client asks the stream to start."""
    logical: bool
    """Whether the command has the keyword LOGICAL."""
    options: OptionList
    """Pairs of name and value of the output plugin's options; empty for physical replication."""


Command: TypeAlias = IdentifySystem | ReadSlot | CreateSlot | DropSlot | AlterSlot | StartReplication

_UNSUPPORTED: Final = ("BASE_BACKUP", "TIMELINE_HISTORY", "UPLOAD_MANIFEST")


def parse_command(text: str) -> Command | None:
    """Parse a replication command. Return None if the text is an SQL statement.

    Raises:
        ServerError: The command has a syntax error or is not supported.
    """
    first = re.match(r"\s*([A-Za-z_]+)", text)
    keyword = first[1].upper() if first else ""
    if keyword in _UNSUPPORTED:
        raise ServerError(
            "0A000", f"a stand-in server has no {keyword}, which is not for logical replication"
        )
    if keyword not in _PARSERS:
        return None
    scanner = Scanner(text)
    scanner.accept_keyword(keyword)
    command = _PARSERS[keyword](scanner)
    scanner.expect_end()
    return command


_NAME_KINDS: Final = ("word", "quoted")
_VALUE_KINDS: Final = ("string", "word", "number")


def _create_slot(scanner: Scanner) -> CreateSlot:
    slot = scanner.expect(*_NAME_KINDS)
    temporary = scanner.accept_keyword("TEMPORARY") is not None
    kind = scanner.accept_keyword("LOGICAL", "PHYSICAL")
    if kind is None:
        raise scanner.syntax_error()
    plugin = scanner.expect(*_NAME_KINDS) if kind == "LOGICAL" else None
    options = scanner.option_list(*_VALUE_KINDS)
    while word := scanner.accept_keyword(*_LEGACY_OPTIONS):
        options.append(_LEGACY_OPTIONS[word])
    return CreateSlot(slot, temporary, plugin, options)


_LEGACY_OPTIONS: Final[Mapping[str, tuple[str, str | None]]] = {
    "EXPORT_SNAPSHOT": ("snapshot", "export"),
    "NOEXPORT_SNAPSHOT": ("snapshot", "nothing"),
    "USE_SNAPSHOT": ("snapshot", "use"),
    "RESERVE_WAL": ("reserve_wal", None),
    "TWO_PHASE": ("two_phase", None),
}
"""Pairs of option name and value in the current syntax, by the option's keyword before PostgreSQL 15."""


def _drop_slot(scanner: Scanner) -> DropSlot:
    return DropSlot(scanner.expect(*_NAME_KINDS), scanner.accept_keyword("WAIT") is not None)


def _alter_slot(scanner: Scanner) -> AlterSlot:
    return AlterSlot(scanner.expect(*_NAME_KINDS), scanner.option_list(*_VALUE_KINDS))


def _start_replication(scanner: Scanner) -> StartReplication:
    slot = scanner.expect(*_NAME_KINDS) if scanner.accept_keyword("SLOT") else None
    logical = scanner.accept_keyword("LOGICAL") is not None
    if not logical:
        scanner.accept_keyword("PHYSICAL")
    lsn = parse_lsn(scanner.expect("lsn"))
    if not logical and scanner.accept_keyword("TIMELINE"):
        scanner.expect("number")
    return StartReplication(slot, lsn, logical, scanner.option_list("string") if logical else [])


_PARSERS: Final[Mapping[str, Callable[[Scanner], Command]]] = {
    "IDENTIFY_SYSTEM": lambda scanner: IdentifySystem(),
    "READ_REPLICATION_SLOT": lambda scanner: ReadSlot(scanner.expect(*_NAME_KINDS)),
    "CREATE_REPLICATION_SLOT": _create_slot,
    "DROP_REPLICATION_SLOT": _drop_slot,
    "ALTER_REPLICATION_SLOT": _alter_slot,
    "START_REPLICATION": _start_replication,
}
"""Functions that parse a command, by its first keyword. SHOW is missing because it is executed as SQL."""
