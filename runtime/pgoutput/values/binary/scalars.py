"""Numbers, text, bytes and identifiers: types whose two forms differ by little."""

from __future__ import annotations

import re
import struct
from typing import Final

from pgoutput.values.binary.reading import Input, matched
from pgoutput.values.scalars import OBJECTS, OPERATORS, TEXT
from pgoutput.wire import escaped_bytes, parse_lsn

_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BYTES: Final = re.compile(r"\\x([0-9a-f]{2})*")
_BITS: Final = re.compile("[01]*")
_TID: Final = re.compile(r"\(([0-9]{1,10}),([0-9]{1,5})\)")
_SNAPSHOT: Final = re.compile("[0-9]+:[0-9]+:([0-9]+(,[0-9]+)*)?")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def _number(form: str) -> Input:
    pack = struct.Struct(form).pack
    return lambda text: pack(int(matched(_INTEGER, text, "-1 or 42")[0]))


def _object(zero: str) -> Input:
    """An object by its OID, since of names only the server knows which object they mean."""
    number = _number(">I")
    return lambda text: number("0" if text == zero else text)


def bool_in(text: str) -> bytes:
    """1 or 0 (boolin, boolsend)."""
    return {"t": b"\1", "f": b"\0"}[matched(re.compile("[tf]"), text, "t or f")[0]]


def text_in(text: str) -> bytes:
    """The characters as they are (textin, textsend, and others)."""
    data = escaped_bytes(text)
    if 0 in data:
        raise ValueError("a zero character is in no text")
    return data


def versioned_in(text: str) -> bytes:
    """Text behind a version byte (jsonb_send, jsonpath_send)."""
    return b"\1" + text_in(text)


def char_in(text: str) -> bytes:
    r"""One byte, which may be given as `\ooo` (charin, charsend)."""
    if octal := _OCTAL.fullmatch(text):
        return bytes([int(octal[1], 8)])
    data = text_in(text) or b"\0"
    if len(data) > 1:
        raise ValueError("more than one byte")
    return data


def bytea_in(text: str) -> bytes:
    """Two hex digits a byte (byteain, byteasend)."""
    return bytes.fromhex(matched(_BYTES, text, r"\x00ff")[0][2:])


def uuid_in(text: str) -> bytes:
    """Hex digits in five groups (uuid_in, uuid_send)."""
    return bytes.fromhex(matched(_UUID, text, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")[0].replace("-", ""))


def bit_in(text: str) -> bytes:
    """A number of bits, and the bits, filled up to bytes (bit_in, bit_send)."""
    count = len(matched(_BITS, text, "0101")[0])
    size = (count + 7) // 8
    return struct.pack(">i", count) + (int(text.ljust(8 * size, "0"), 2) if count else 0).to_bytes(size)


def tid_in(text: str) -> bytes:
    """Block and item (tidin, tidsend)."""
    return struct.pack(">IH", *map(int, matched(_TID, text, "(0,1)").groups()))


def lsn_in(text: str) -> bytes:
    """A log sequence number (pg_lsn_in, pg_lsn_send)."""
    return struct.pack(">Q", parse_lsn(text))


def snapshot_in(text: str) -> bytes:
    """How many transactions are between, the first and the end, and those between (pg_snapshot_send)."""
    first, end, between = matched(_SNAPSHOT, text, "10:20:10,14")[0].split(":")
    numbers = [int(first), int(end), *map(int, between.split(",") if between else ())]
    return struct.pack(f">i{len(numbers)}Q", len(numbers) - 2, *numbers)


SCALARS: Final[dict[str, Input]] = {
    "boolsend": bool_in,
    "int2send": _number(">h"),
    "int4send": _number(">i"),
    "int8send": _number(">q"),
    "cash_send": _number(">q"),
    "oidsend": _number(">I"),
    "xidsend": _number(">I"),
    "cidsend": _number(">I"),
    "xid8send": _number(">Q"),
    "jsonb_send": versioned_in,
    "jsonpath_send": versioned_in,
    "charsend": char_in,
    "byteasend": bytea_in,
    "pg_mcv_list_send": bytea_in,
    "uuid_send": uuid_in,
    "bit_send": bit_in,
    "varbit_send": bit_in,
    "tidsend": tid_in,
    "pg_lsn_send": lsn_in,
    "pg_snapshot_send": snapshot_in,
    **{f"{name}send": text_in for name in TEXT},
    **{f"reg{name}send": _object("-") for name in OBJECTS},
    **{f"reg{name}send": _object("0") for name in OPERATORS},
}
"""By send function."""
