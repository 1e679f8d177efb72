"""Parts of texts: an error on one line, the name of a relation, and a number with its noun."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from logicalrep.wire import shown_text

SHOWN: Final = 5
"""Largest number of elements of a list that a line of a log shows."""

LINE_CHARACTERS: Final = 4096
"""Largest number of characters in a line of a log. journald divides lines of more than 48 KiB."""

REMEDY: Final = "; what to do: "
"""Text between the error of a connection attempt and its remedy."""


def listed(texts: Iterable[str], separator: str = ", ") -> str:
    """Return the first five texts and the number of the others, such as `a, b, c, d, e, and 995 more`."""
    whole = list(texts)
    more = [f"and {len(whole) - SHOWN:,} more"] if len(whole) > SHOWN else []
    return separator.join([*whole[:SHOWN], *more])


def bounded(text: str, characters: int = LINE_CHARACTERS) -> str:
    """Return a text, cut off if it has more than `characters` characters, which must be at least 50."""
    kept = characters - 50
    more = f"… (and {len(text) - kept:,} more characters)"
    return text if len(text) <= characters else text[:kept] + more


def one_line(error: Exception | str) -> str:
    """Return the text of an error on one line, without a full stop at its end.

    An exception without text is shown as the name of its class.
    """
    text = " ".join(str(error).split()).rstrip(".")
    return text if text or isinstance(error, str) else type(error).__name__


def qualified_name(namespace: str, name: str) -> str:
    """Return the name of a relation as `public.orders`; an empty namespace means pg_catalog."""
    return f"{shown_text(namespace) or 'pg_catalog'}.{shown_text(name)}"


def counted(number: int, noun: str) -> str:
    """Return a number with the singular or plural of a regular noun, such as `1 file` or `1,000 files`."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"
