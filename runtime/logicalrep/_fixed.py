"""NumPy record types of messages that have only fixed-width fields (Begin, Commit)."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logicalrep._offsets import layout_of
from logicalrep._roles import classes


class FixedMessage(NamedTuple):
    """A message class whose messages all have the same fields and the same length."""

    tag: int
    dtype: np.dtype[Any]
    """NumPy record type of a message: `tag`, then the fields, named by meaning in the spec, else by name."""
    constants: dict[str, int]
    """The only valid value of each literal field, by field name."""

    def read(self, starts: npt.NDArray[Any], content: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Return messages of the class as a structured array; None if a constant in one of them is wrong.

        Args:
            starts: Offsets in `content` where the messages begin.
            content: Bytes that contain these messages, and may contain others.
        """
        size = self.dtype.itemsize
        fields = np.ndarray((len(content) - size + 1,), self.dtype, content, strides=(1,))[starts]
        valid = all((fields[name] == value).all() for name, value in self.constants.items())
        return fields if valid else None


@cache
def fixed_message(role: str, proto_version: int) -> FixedMessage | None:
    """Return the `FixedMessage` of the message class with the role `role`, such as `begin`.

    If several classes have the role, the first of them in the spec is used. Return None if the version has no
    such class, or if the class has a field that is not an integer, or a field that only some of its messages
    have.
    """
    layouts = (layout_of(kind, proto_version) for kind in classes(role))
    layout = next((one for one in layouts if one is not None), None)
    if layout is None or any(one.when or one.kind not in ("integer", "literal") for one in layout.fields):
        return None
    fields = [(one.means or one.name, f">{'i' if one.signed else 'u'}{one.size}") for one in layout.fields]
    constants = {one.name: one.literal for one in layout.fields if one.literal is not None}
    return FixedMessage(ord(layout.tag), np.dtype([("tag", "u1"), *fields]), constants)
