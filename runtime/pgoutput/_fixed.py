"""Messages that have fixed-width fields only, as numpy sees them: many at once, where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from pgoutput import _protocols, messages


def fixed_dtype(message: type[messages.Message]) -> np.dtype[Any]:
    """The bytes of such a message, tag first; the same in all versions, outside stream blocks.

    Fields have their names; one that is always zero is called `flags`.
    """
    fields = _protocols.V1.by_name[message.__name__].fields
    kinds = [(field.name or "flags", f">{'i' if field.signed else 'u'}{field.size}") for field in fields]
    return np.dtype([("tag", "u1"), *kinds])
