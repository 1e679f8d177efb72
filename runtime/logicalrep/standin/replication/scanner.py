"""Scan the tokens of replication commands (repl_scanner.l)."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from logicalrep.standin.protocol import ServerError

OptionList: TypeAlias = list[tuple[str, str | None]]
"""Pairs of option name and value, in the order of the command. An option without a value has None."""


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


class Scanner:
    """Reads the tokens of a replication command one after another.

    Args:
        text: Text of the command.

    Raises:
        ServerError: The text contains a character that is not part of any token.
    """

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.syntax_error()
            position = match.end()
            if match.lastgroup is not None:
                self._tokens.append((match.lastgroup, match[match.lastgroup]))
        self._tokens.reverse()

    def accept(self, *kinds: str) -> str | None:
        """Read the next token if its kind, such as `word`, is in `kinds`. Return its text, else None."""
        if not self._tokens or self._tokens[-1][0] not in kinds:
            return None
        kind, text = self._tokens.pop()
        match kind:
            case "string" | "quoted":
                return text[1:-1].replace(text[0] * 2, text[0])
            case "word":
                return text.lower()
        return text

    def expect(self, *kinds: str) -> str:
        """Read the next token and return its unquoted text. Its kind, such as `word`, must be in `kinds`.

        Raises:
            ServerError: The next token has another kind.
        """
        value = self.accept(*kinds)
        if value is None:
            raise self.syntax_error()
        return value

    def accept_keyword(self, *keywords: str) -> str | None:
        """Read the next token if it is one of the upper-case `keywords`. Return the keyword, else None."""
        if not self._tokens or self._tokens[-1][0] != "word":
            return None
        keyword = self._tokens[-1][1].upper()
        if keyword not in keywords:
            return None
        self._tokens.pop()
        return keyword

    def accept_sign(self, sign: str) -> bool:
        """Read the next token if it is the punctuation `sign`. Return whether it is."""
        if self._tokens and self._tokens[-1] == ("sign", sign):
            self._tokens.pop()
            return True
        return False

    def option_list(self, *value_kinds: str) -> OptionList:
        """Read an optional list of options in parentheses. Values must be tokens of the kinds `value_kinds`.

        Raises:
            ServerError: The list of options has a syntax error.
        """
        options: OptionList = []
        if not self.accept_sign("("):
            return options
        while True:
            name = self.expect("word", "quoted")
            options.append((name, self.accept(*value_kinds)))
            if self.accept_sign(")"):
                return options
            if not self.accept_sign(","):
                raise self.syntax_error()

    def expect_end(self) -> None:
        """Check that the command ends here, apart from an optional semicolon.

        Raises:
            ServerError: Another token follows.
        """
        self.accept_sign(";")
        if self._tokens:
            raise self.syntax_error()

    def syntax_error(self) -> ServerError:
        """Return PostgreSQL's error for a command with a syntax error."""
        return ServerError("42601", "syntax error")
