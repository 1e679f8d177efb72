"""Match the text of a value against a regular expression."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

InputFunction: TypeAlias = Callable[[str], bytes]
"""A function from a value's text form to its binary form.

It raises ValueError, OverflowError or struct.error if the text is not a value of the type.
"""


def match_whole(pattern: re.Pattern[str], text: str, example: str) -> re.Match[str]:
    """Return the match of the whole text with a pattern.

    Args:
        pattern: The pattern.
        text: A value's text.
        example: An example of a valid text, for the error message.

    Raises:
        ValueError: The pattern does not match the whole text.
    """
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"a text such as {example} is expected")
    return match
