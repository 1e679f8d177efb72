"""Parts of texts: an error on one line, the name of a relation, and a number with its noun."""

from __future__ import annotations

from pgoutput.wire import shown_text


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
