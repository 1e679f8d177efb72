"""The commands of the streaming replication protocol (repl_gram.y and repl_scanner.l of the server)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from pgoutput.standin.protocol import Refused
from pgoutput.standin.tokens import OptionList, Tokens
from pgoutput.wire import parse_lsn


class IdentifySystem(msgspec.Struct, frozen=True):
    """IDENTIFY_SYSTEM."""


class ReadSlot(msgspec.Struct, frozen=True):
    """READ_REPLICATION_SLOT."""

    slot: str


class CreateSlot(msgspec.Struct, frozen=True):
    """CREATE_REPLICATION_SLOT."""

    slot: str
    temporary: bool
    plugin: str | None
    """None for a physical slot."""
    options: OptionList


class DropSlot(msgspec.Struct, frozen=True):
    """DROP_REPLICATION_SLOT."""

    slot: str
    wait: bool


class AlterSlot(msgspec.Struct, frozen=True):
    """ALTER_REPLICATION_SLOT."""

    slot: str
    options: OptionList


class StartReplication(msgspec.Struct, frozen=True):
    """START_REPLICATION."""

    slot: str | None
    lsn: int
    logical: bool
    options: OptionList


Command: TypeAlias = IdentifySystem | ReadSlot | CreateSlot | DropSlot | AlterSlot | StartReplication

_FOREIGN: Final = ("BASE_BACKUP", "TIMELINE_HISTORY", "UPLOAD_MANIFEST")


def parse_command(text: str) -> Command | None:
    """The command that a client has sent; None if it is SQL.

    Raises:
        Refused: It is not written as the server has it.
    """
    first = re.match(r"\s*([A-Za-z_]+)", text)
    keyword = first[1].upper() if first else ""
    if keyword in _FOREIGN:
        raise Refused("0A000", f"{keyword} is not for logical replication, and the stand-in does not have it")
    if keyword not in _COMMANDS:
        return None
    tokens = Tokens(text)
    tokens.word(keyword)
    command = _COMMANDS[keyword](tokens)
    tokens.end()
    return command


_NAME: Final = ("word", "quoted")
_VALUE: Final = ("string", "word", "number")


def _create_slot(tokens: Tokens) -> CreateSlot:
    slot = tokens.need(*_NAME)
    temporary = tokens.word("TEMPORARY") is not None
    kind = tokens.word("LOGICAL", "PHYSICAL")
    if kind is None:
        raise tokens.error()
    plugin = tokens.need(*_NAME) if kind == "LOGICAL" else None
    options = tokens.options(*_VALUE)
    while word := tokens.word(*_OLD_OPTIONS):
        options.append(_OLD_OPTIONS[word])
    return CreateSlot(slot, temporary, plugin, options)


_OLD_OPTIONS: Final[Mapping[str, tuple[str, str | None]]] = {
    "EXPORT_SNAPSHOT": ("snapshot", "export"),
    "NOEXPORT_SNAPSHOT": ("snapshot", "nothing"),
    "USE_SNAPSHOT": ("snapshot", "use"),
    "RESERVE_WAL": ("reserve_wal", None),
    "TWO_PHASE": ("two_phase", None),
}
"""OptionList as they were written before PostgreSQL 15, and what they are now."""


def _drop_slot(tokens: Tokens) -> DropSlot:
    return DropSlot(tokens.need(*_NAME), tokens.word("WAIT") is not None)


def _alter_slot(tokens: Tokens) -> AlterSlot:
    return AlterSlot(tokens.need(*_NAME), tokens.options(*_VALUE))


def _start_replication(tokens: Tokens) -> StartReplication:
    slot = tokens.need(*_NAME) if tokens.word("SLOT") else None
    logical = tokens.word("LOGICAL") is not None
    if not logical:
        tokens.word("PHYSICAL")
    lsn = parse_lsn(tokens.need("lsn"))
    if not logical and tokens.word("TIMELINE"):
        tokens.need("number")
    return StartReplication(slot, lsn, logical, tokens.options("string") if logical else [])


_COMMANDS: Final[Mapping[str, Callable[[Tokens], Command]]] = {
    "IDENTIFY_SYSTEM": lambda tokens: IdentifySystem(),
    "READ_REPLICATION_SLOT": lambda tokens: ReadSlot(tokens.need(*_NAME)),
    "CREATE_REPLICATION_SLOT": _create_slot,
    "DROP_REPLICATION_SLOT": _drop_slot,
    "ALTER_REPLICATION_SLOT": _alter_slot,
    "START_REPLICATION": _start_replication,
}
"""What SQL does not have. SHOW is the same in both."""


def boolean(name: str, value: str | None) -> bool:
    """The value of an option that is on or off (defGetBoolean).

    Raises:
        Refused: It is neither.
    """
    try:
        return _BOOLEANS["true" if value is None else value.lower()]
    except KeyError:
        raise Refused("42601", f"{name} requires a Boolean value") from None


_BOOLEANS: Final = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
