"""The words of the streaming replication protocol (repl_scanner.l of the server)."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from pgoutput.standin.protocol import Refused

OptionList: TypeAlias = list[tuple[str, str | None]]
"""Names and values, in their order; None where only the name stands."""


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


class Tokens:
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

    def options(self, *value: str) -> OptionList:
        """OptionList in parentheses, if there are any; their values are tokens of these kinds."""
        options: OptionList = []
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
