"""Text of extended statistics: pg_ndistinct and pg_dependencies.

Statistics are sent as they are stored, in the server's native byte order.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from logicalrep.values.forms.parsing import Form, Reader

_NDISTINCT: Final = 0xA352BFA4
_DEPENDENCIES: Final = 0xB4549A2C
"""Magic number at the start of a pg_dependencies value (STATS_DEPS_MAGIC); `_NDISTINCT` is that of
pg_ndistinct (STATS_NDISTINCT_MAGIC)."""
_BASIC: Final = 1
"""Only valid number after the magic number (STATS_NDISTINCT_TYPE_BASIC, STATS_DEPS_TYPE_BASIC)."""


def _format_statistics(data: bytes, magic: int, head: str, last: str, number: str) -> str:
    """Return the text of extended statistics: a number for each group of attribute numbers.

    Args:
        data: Magic number, type and count; then for each group a double, the number of attributes, and the
            attribute numbers.
        magic: Expected magic number.
        head: struct format of the double and the number of attributes.
        last: Separator before the last attribute number.
        number: `%` format of the double.
    """
    order = "<" if data[:4] == magic.to_bytes(4, "little") else ">"
    reader = Reader(data)
    actual_magic, kind, count = reader.unpack(struct.Struct(f"{order}III"))
    if actual_magic != magic or kind != _BASIC:
        raise ValueError(
            f"expected extended statistics with magic number {magic:#x} and kind {_BASIC}, found "
            f"{actual_magic:#x} and {kind}"
        )
    items: list[str] = []
    while len(items) < count:
        value, size = reader.unpack(struct.Struct(order + head))
        if not abs(value) < 2**31:  # also excludes NaN
            raise ValueError(
                f"a number of distinct values or degree of dependency must be less than 2**31, not {value}"
            )
        *first, attribute = struct.unpack(f"{order}{size}h", reader.take(2 * size))
        attributes = ", ".join(map(str, first)) + f"{last}{attribute}"
        items.append(f'"{attributes}": {number % value}')
    reader.end()
    return "{" + ", ".join(items) + "}"


STATISTICS: Final = {
    "pg_ndistinct_send": Form(
        partial(_format_statistics, magic=_NDISTINCT, head="dI", last=", ", number="%d")
    ),
    "pg_dependencies_send": Form(
        partial(_format_statistics, magic=_DEPENDENCIES, head="dH", last=" => ", number="%f")
    ),
}
"""Conversions to text, by name of the type's send function (statext_ndistinct_serialize and others)."""
