"""Boundary values of the fields of messages, derived from the layouts in `logicalrep._protocols`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from logicalrep import _protocols, messages
from logicalrep._layout import Field
from logicalrep.wire import UNCHANGED

Choice: TypeAlias = tuple[str, Any]
"""A boundary value of a field, as (name of the value, value)."""

_TYPICAL: Final[Mapping[str, int]] = {
    "lsn": 0x16_B374D848,
    "timestamp": 846_763_494_863_424,
    "xid": 741,
    "oid": 16_385,
    "full_xid": 741,
}
"""Usual values of integer types such as `lsn`, by name of the type in the spec."""

_STRINGS: Final[tuple[Choice, ...]] = (
    ("ascii", "public"),
    ("empty", ""),
    ("latin", "Größe"),
    ("emoji", "🐘"),
    ("long", "n" * 300),
    ("not-utf-8", "caf\udce9"),
)
_BYTES: Final[tuple[Choice, ...]] = (
    ("bytes", b"\x00\xff\n"),
    ("empty", b""),
    ("long", bytes(range(256)) * 2),
)
_TEXTS: Final[tuple[Choice, ...]] = (
    ("text", "ab"),
    ("text-empty", ""),
    ("text-latin", "Größe"),
    ("text-emoji", "🐘"),
    ("text-lines", 'a\n"b"\t\\'),
    ("text-long", "x" * 300),
    ("text-not-utf-8", "caf\udce9"),
)
_BINARIES: Final[tuple[Choice, ...]] = (
    ("binary", b"\x00\x00\x00*"),
    ("binary-empty", b""),
    ("binary-long", bytes(range(256)) * 2),
)
EXTREME: Final = "extreme-"
"""Prefix of the names of values that 64-bit fields, such as LSNs, can have, but do not have in practice."""

MANY: Final = 300
"""Number of elements of long lists. It does not fit into one byte."""


def choices(field: Field) -> Iterator[Choice]:
    """Yield boundary values of a field with their names. The first value is a usual value.

    Args:
        field: Field of a message or of an element of a list.
    """
    match field.kind:
        case "integer":
            yield from _integers(field)
        case "bool":
            yield from (("true", True), ("false", False))
        case "enum":
            kind = getattr(messages, field.type)
            yield from ((name.lower(), kind(value)) for value, name in field.values.items())
        case "flags":
            kind = getattr(messages, field.type)
            yield from (("none", kind(0)), *((name.lower(), kind[name]) for name in field.values.values()))
            if len(field.values) > 1:
                yield "all", kind(field.mask)
        case "string":
            yield from _STRINGS
        case "bytes" | "rest":
            yield from _BYTES
        case "list":
            yield from _lists(field)
        case "tuple":
            yield from _tuples(field)


def _integers(field: Field) -> Iterator[Choice]:
    bits = field.size * 8
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if field.signed else (0, (1 << bits) - 1)
    typical = _TYPICAL.get(field.type, -1 if field.signed else 1)
    yield "typical", typical
    extreme = EXTREME if field.size == 8 else ""
    yield "zero", 0
    yield f"{extreme}greatest", high
    if field.signed:
        yield f"{extreme}least", low
    else:
        yield f"{extreme}sign-bit", 1 << bits - 1


def _lists(field: Field) -> Iterator[Choice]:
    if field.element == "struct":
        kind = _protocols.CLASSES[field.type]
        typical = {inner.name: next(choices(inner))[1] for inner in field.fields}
        element = [typical | {"name": f"c{i}"} if "name" in typical else typical for i in range(MANY)]
        yield "two", tuple(kind(**one) for one in element[:2])
        yield "none", ()
        yield f"{MANY}", tuple(kind(**one) for one in element)
        for inner in field.fields:
            for name, value in list(choices(inner))[1:]:
                yield f"{inner.name}-{name}", (kind(**(typical | {inner.name: value})),)
    elif field.element == "tuple":
        for name, cells in _tuples(field.fields[0]):
            yield name, (cells,)
    else:
        values = [value for _, value in _integers(field.fields[0])]
        yield "two", (values[0], values[0] + 1)
        yield "boundaries", tuple(values)
        yield "none", ()


def _tuples(field: Field) -> Iterator[Choice]:
    """Yield (name, tuple) for a field that is a tuple: one tuple for each boundary value of a cell.

    If the field is a new tuple, a tuple with many cells and a tuple without cells follow. The first cell of a
    tuple is always text, as the value of a key column.
    """
    yield "text", ("1", "ab")
    for cell in field.cells:
        match cell.form:
            case "null":
                yield "null", ("1", None)
            case "unchanged" if field.means == "new":  # key and old tuples contain no unchanged values
                yield "unchanged", ("1", UNCHANGED)
            case "text":
                yield from ((name, ("1", text)) for name, text in _TEXTS[1:])
            case "binary":
                yield from ((name, ("1", raw)) for name, raw in _BINARIES)
    if field.means == "new":
        yield f"{MANY}", tuple(map(str, range(MANY)))
        yield "none", ()
