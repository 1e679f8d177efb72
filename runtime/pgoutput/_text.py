"""Format the text of an error on one line."""

from __future__ import annotations


def one_line(error: Exception | str) -> str:
    """Return the text of an error on one line, without a full stop at its end.

    An exception without text is shown as the name of its class.
    """
    text = " ".join(str(error).split()).rstrip(".")
    return text if text or isinstance(error, str) else type(error).__name__
