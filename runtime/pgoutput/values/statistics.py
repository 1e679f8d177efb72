"""Extended statistics, which are sent as they are stored, in the server's own byte order."""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from pgoutput.values.reader import Output, Reader

_NDISTINCT: Final = 0xA352BFA4
_DEPENDENCIES: Final = 0xB4549A2C
"""STATS_NDISTINCT_MAGIC and STATS_DEPS_MAGIC."""
_BASIC: Final = 1
"""STATS_NDISTINCT_TYPE_BASIC and STATS_DEPS_TYPE_BASIC."""


def _statistics(data: bytes, magic: int, head: str, last: str, number: str) -> str:
    """Groups of attribute numbers, and a number for each.

    Args:
        data: Magic, type and count, then the items: a double, a number of attributes, the attributes.
        magic: What the data begins with, in the byte order of the rest.
        head: The form of the double and the number of attributes.
        last: What stands before the last attribute.
        number: How the double is written.
    """
    order = "<" if data[:4] == magic.to_bytes(4, "little") else ">"
    reader = Reader(data)
    found, kind, count = reader.unpack(struct.Struct(f"{order}III"))
    if found != magic or kind != _BASIC:
        raise ValueError("unknown statistics")
    items: list[str] = []
    while len(items) < count:
        value, size = reader.unpack(struct.Struct(order + head))
        if not abs(value) < 2**31:  # NaN is neither
            raise ValueError("not a number of rows, nor a degree")
        *first, attribute = struct.unpack(f"{order}{size}h", reader.take(2 * size))
        attributes = ", ".join(map(str, first)) + f"{last}{attribute}"
        items.append(f'"{attributes}": {number % value}')
    reader.end()
    return "{" + ", ".join(items) + "}"


STATISTICS: Final[dict[str, Output]] = {
    "pg_ndistinct_send": partial(_statistics, magic=_NDISTINCT, head="dI", last=", ", number="%d"),
    "pg_dependencies_send": partial(_statistics, magic=_DEPENDENCIES, head="dH", last=" => ", number="%f"),
}
"""By send function (statext_ndistinct_serialize, statext_dependencies_serialize)."""
