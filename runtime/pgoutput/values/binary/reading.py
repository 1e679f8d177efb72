"""Reading one value's text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

Input: TypeAlias = Callable[[str], bytes]
"""A value's text form to its binary form; raises ValueError, OverflowError or struct.error where the text is
no such value."""


def matched(form: re.Pattern[str], text: str, expected: str) -> re.Match[str]:
    """The text as the form reads it.

    Args:
        form: What all of the text must look like.
        text: The text.
        expected: An example of it, for the error.

    Raises:
        ValueError: It looks otherwise.
    """
    match = form.fullmatch(text)
    if match is None:
        raise ValueError(f"expected is such as {expected}")
    return match
