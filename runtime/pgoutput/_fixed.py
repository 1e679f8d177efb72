"""NumPy record types of messages that have only fixed-width fields (Begin, Commit)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pgoutput import _protocols, messages


def fixed_dtype(message: type[messages.Message]) -> np.dtype[Any]:
    """Return the NumPy record type of a message class with fixed-width fields: the tag, then the fields.

    The type describes messages outside stream blocks, whose layout is the same in all protocol versions. The
    fields have the names of the message's attributes; a field that is always zero is called `flags`.
    """
    fields = _protocols.V1.by_name[message.__name__].fields
    kinds = [(field.name or "flags", f">{'i' if field.signed else 'u'}{field.size}") for field in fields]
    return np.dtype([("tag", "u1"), *kinds])
