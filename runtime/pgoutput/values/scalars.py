"""Numbers, text, bytes and identifiers: types whose two forms differ by little."""

from __future__ import annotations

import struct
from typing import Final

from pgoutput.values.reader import Output, Reader
from pgoutput.wire import format_lsn

_COUNT: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">Q")
_TID: Final = struct.Struct(">IH")
_UUID_BYTES: Final = 16
_JSON_VERSION: Final = b"\1"


def _number(form: str) -> Output:
    unpack = struct.Struct(form).unpack
    return lambda data: str(unpack(data)[0])


def _object(zero: str) -> Output:
    """An object by its OID. Its name is not on the wire; that there is none (OID 0) is."""
    unpack = struct.Struct(">I").unpack
    return lambda data: str(unpack(data)[0] or zero)


def bool_out(data: bytes) -> str:
    """`t` or `f` (boolsend, boolout)."""
    return {b"\1": "t", b"\0": "f"}.get(data) or _refuse("neither 0 nor 1")


def text_out(data: bytes) -> str:
    """The characters as they are (textsend, textout, and others)."""
    if 0 in data:
        raise ValueError("a zero byte in text")
    return data.decode("utf-8", "surrogateescape")


def versioned_out(data: bytes) -> str:
    """Text behind a version byte (jsonb_send, jsonpath_send)."""
    if data[:1] != _JSON_VERSION:
        raise ValueError("unknown version")
    return text_out(data[1:])


def char_out(data: bytes) -> str:
    r"""One byte, and `\ooo` where it is not ASCII, as since PostgreSQL 15 (charsend, charout)."""
    (byte,) = data
    return chr(byte) if 0 < byte < 128 else f"\\{byte:o}" if byte else ""


def bytea_out(data: bytes) -> str:
    """Two hex digits a byte (byteasend, byteaout)."""
    return "\\x" + data.hex()


def uuid_out(data: bytes) -> str:
    """Hex digits in five groups (uuid_send, uuid_out)."""
    if len(data) != _UUID_BYTES:
        raise ValueError("not a UUID")
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def bit_out(data: bytes) -> str:
    """A digit a bit; the last byte may be filled up (bit_send, bit_out)."""
    (count,) = _COUNT.unpack_from(data)
    if count < 0 or len(data) != _COUNT.size + (count + 7) // 8:
        raise ValueError(f"{count} bits in {len(data)} bytes")
    bits = int.from_bytes(data[_COUNT.size :]) >> -count % 8
    return f"{bits:0{count}b}" if count else ""


def tid_out(data: bytes) -> str:
    """Block and item (tidsend, tidout)."""
    return "({},{})".format(*_TID.unpack(data))


def lsn_out(data: bytes) -> str:
    """A log sequence number (pg_lsn_send, pg_lsn_out)."""
    return format_lsn(_INT64.unpack(data)[0])


def snapshot_out(data: bytes) -> str:
    """The first transaction in progress, the one after the last, and those between (pg_snapshot_out)."""
    reader = Reader(data)
    (count,) = reader.unpack(_COUNT)
    first, end, *between = struct.unpack(f">{reader.left // 8}Q", reader.take(reader.left))
    if len(between) != count:
        raise ValueError(f"{count} transactions, {len(between)} are there")
    return f"{first}:{end}:{','.join(map(str, between))}"


def _refuse(text: str) -> str:
    raise ValueError(text)


TEXT: Final = ("text", "varchar", "bpchar", "name", "json_", "xml_", "pg_node_tree_")
OBJECTS: Final = (
    "proc",
    "procedure",
    "class",
    "type",
    "config",
    "dictionary",
    "namespace",
    "role",
    "collation",
)
OPERATORS: Final = ("oper", "operator")

SCALARS: Final[dict[str, Output]] = {
    "boolsend": bool_out,
    "int2send": _number(">h"),
    "int4send": _number(">i"),
    "int8send": _number(">q"),
    "cash_send": _number(">q"),
    "oidsend": _number(">I"),
    "xidsend": _number(">I"),
    "cidsend": _number(">I"),
    "xid8send": _number(">Q"),
    "jsonb_send": versioned_out,
    "jsonpath_send": versioned_out,
    "charsend": char_out,
    "byteasend": bytea_out,
    "pg_mcv_list_send": bytea_out,
    "uuid_send": uuid_out,
    "bit_send": bit_out,
    "varbit_send": bit_out,
    "tidsend": tid_out,
    "pg_lsn_send": lsn_out,
    "pg_snapshot_send": snapshot_out,
    **{f"{name}send": text_out for name in TEXT},
    **{f"reg{name}send": _object("-") for name in OBJECTS},
    **{f"reg{name}send": _object("0") for name in OPERATORS},
}
"""By send function."""
