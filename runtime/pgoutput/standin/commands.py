"""The commands of the streaming replication protocol (repl_gram.y and repl_scanner.l of the server)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from pgoutput.standin.protocol import Refused
from pgoutput.wire import parse_lsn

Options: TypeAlias = list[tuple[str, str | None]]
"""Names and values, in their order; None where only the name stands."""


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
    options: Options


class DropSlot(msgspec.Struct, frozen=True):
    """DROP_REPLICATION_SLOT."""

    slot: str
    wait: bool


class AlterSlot(msgspec.Struct, frozen=True):
    """ALTER_REPLICATION_SLOT."""

    slot: str
    options: Options


class StartReplication(msgspec.Struct, frozen=True):
    """START_REPLICATION."""

    slot: str | None
    lsn: int
    logical: bool
    options: Options


Command: TypeAlias = IdentifySystem | ReadSlot | CreateSlot | DropSlot | AlterSlot | StartReplication

_TOKEN: Final = re.compile(
    r"""\s+
    | (?P<string> '(?:[^']|'')*' )
    | (?P<quoted> "(?:[^"]|"")+" )
    | (?P<lsn> [0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8} )
    | (?P<word> [A-Za-z_\x80-\uffff][\w$]* )
    | (?P<number> [0-9]+ )
    | (?P<sign> [(),;] )""",
    re.VERBOSE,
)

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
    tokens = _Tokens(text)
    tokens.word(keyword)
    command = _COMMANDS[keyword](tokens)
    tokens.end()
    return command


class _Tokens:
    """The tokens of a command, one after another."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error()
            position = match.end()
            if match.lastgroup is not None:
                self._tokens.append((match.lastgroup, match[match.lastgroup]))
        self._tokens.reverse()

    def take(self, *kinds: str) -> str | None:
        """The next token if it is of one of these kinds, as what it stands for; None if not."""
        if not self._tokens or self._tokens[-1][0] not in kinds:
            return None
        kind, text = self._tokens.pop()
        match kind:
            case "string" | "quoted":
                return text[1:-1].replace(text[0] * 2, text[0])
            case "word":
                return text.lower()
        return text

    def need(self, *kinds: str) -> str:
        """The next token, which must be of one of these kinds."""
        found = self.take(*kinds)
        if found is None:
            raise self.error()
        return found

    def word(self, *words: str) -> str | None:
        """The next token if it is one of these keywords, in upper case; None if not."""
        if self._tokens and self._tokens[-1][0] == "word" and (word := self._tokens[-1][1].upper()) in words:
            self._tokens.pop()
            return word
        return None

    def sign(self, sign: str) -> bool:
        """Whether the next token is this sign, which is then taken."""
        if self._tokens and self._tokens[-1] == ("sign", sign):
            self._tokens.pop()
            return True
        return False

    def options(self, *value: str) -> Options:
        """Options in parentheses, if there are any; their values are tokens of these kinds."""
        options: Options = []
        if not self.sign("("):
            return options
        while True:
            name = self.need("word", "quoted")
            options.append((name, self.take(*value)))
            if self.sign(")"):
                return options
            if not self.sign(","):
                raise self.error()

    def end(self) -> None:
        """See that nothing follows but a semicolon."""
        self.sign(";")
        if self._tokens:
            raise self.error()

    def error(self) -> Refused:
        """The error that the next token cannot stand there."""
        return Refused("42601", "syntax error")


_NAME: Final = ("word", "quoted")
_VALUE: Final = ("string", "word", "number")


def _create_slot(tokens: _Tokens) -> CreateSlot:
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
"""Options as they were written before PostgreSQL 15, and what they are now."""


def _drop_slot(tokens: _Tokens) -> DropSlot:
    return DropSlot(tokens.need(*_NAME), tokens.word("WAIT") is not None)


def _alter_slot(tokens: _Tokens) -> AlterSlot:
    return AlterSlot(tokens.need(*_NAME), tokens.options(*_VALUE))


def _start_replication(tokens: _Tokens) -> StartReplication:
    slot = tokens.need(*_NAME) if tokens.word("SLOT") else None
    logical = tokens.word("LOGICAL") is not None
    if not logical:
        tokens.word("PHYSICAL")
    lsn = parse_lsn(tokens.need("lsn"))
    if not logical and tokens.word("TIMELINE"):
        tokens.need("number")
    return StartReplication(slot, lsn, logical, tokens.options("string") if logical else [])


_COMMANDS: Final[Mapping[str, Callable[[_Tokens], Command]]] = {
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
