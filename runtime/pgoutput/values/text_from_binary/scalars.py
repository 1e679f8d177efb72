"""Text of booleans, integers, text, bytes and identifiers."""

from __future__ import annotations

import struct
from typing import Final

from pgoutput.values.text_from_binary.reader import OutputFunction, Reader
from pgoutput.wire import format_lsn

_COUNT: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">Q")
_TID: Final = struct.Struct(">IH")
_UUID_BYTES: Final = 16
_JSON_VERSION: Final = b"\1"


def _integer_output(form: str) -> OutputFunction:
    unpack = struct.Struct(form).unpack
    return lambda data: str(unpack(data)[0])


def _reg_output(zero: str) -> OutputFunction:
    """Return the output function of a reg* type; the text is the object's OID, or `zero` for OID 0.

    The object's name is not sent in binary format.
    """
    unpack = struct.Struct(">I").unpack
    return lambda data: str(unpack(data)[0] or zero)


def bool_out(data: bytes) -> str:
    """Return a boolean's text, `t` or `f` (boolsend, boolout)."""
    return {b"\1": "t", b"\0": "f"}.get(data) or _refuse("neither 0 nor 1")


def text_out(data: bytes) -> str:
    """Return the text of a value whose binary form is the text's bytes (textsend, textout)."""
    if 0 in data:
        raise ValueError("a zero byte in text")
    return data.decode("utf-8", "surrogateescape")


def versioned_out(data: bytes) -> str:
    """Return the text of jsonb or jsonpath, which follows a version byte (jsonb_send, jsonpath_send)."""
    if data[:1] != _JSON_VERSION:
        raise ValueError("unknown version")
    return text_out(data[1:])


def char_out(data: bytes) -> str:
    r"""Return a "char" value's text: one ASCII character, or `\ooo` as in PostgreSQL 15+ (charout)."""
    (byte,) = data
    return chr(byte) if 0 < byte < 128 else f"\\{byte:o}" if byte else ""


def bytea_out(data: bytes) -> str:
    r"""Return a bytea value's text in hex format, `\x00ff` (byteasend, byteaout)."""
    return "\\x" + data.hex()


def uuid_out(data: bytes) -> str:
    """Return a UUID's text: 32 hex digits in five groups (uuid_send, uuid_out)."""
    if len(data) != _UUID_BYTES:
        raise ValueError("not a UUID")
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def bit_out(data: bytes) -> str:
    """Return a bit string's text, `0101` (bit_send, bit_out)."""
    (count,) = _COUNT.unpack_from(data)
    if count < 0 or len(data) != _COUNT.size + (count + 7) // 8:
        raise ValueError(f"{count} bits in {len(data)} bytes")
    bits = int.from_bytes(data[_COUNT.size :]) >> -count % 8
    return f"{bits:0{count}b}" if count else ""


def tid_out(data: bytes) -> str:
    """Return a tuple identifier's text, `(block,offset)` (tidsend, tidout)."""
    return "({},{})".format(*_TID.unpack(data))


def lsn_out(data: bytes) -> str:
    """Return an LSN's text, `16/B374D848` (pg_lsn_send, pg_lsn_out)."""
    return format_lsn(_INT64.unpack(data)[0])


def snapshot_out(data: bytes) -> str:
    """Return a snapshot's text, `xmin:xmax:xip,xip` (pg_snapshot_send, pg_snapshot_out)."""
    reader = Reader(data)
    (count,) = reader.unpack(_COUNT)
    xmin, xmax, *in_progress = struct.unpack(f">{reader.remaining // 8}Q", reader.take(reader.remaining))
    if len(in_progress) != count:
        raise ValueError(f"{count} transactions are expected, {len(in_progress)} are there")
    return f"{xmin}:{xmax}:{','.join(map(str, in_progress))}"


def _refuse(text: str) -> str:
    raise ValueError(text)


TEXT_TYPES: Final = ("text", "varchar", "bpchar", "name", "json_", "xml_", "pg_node_tree_")
"""Prefixes in names of send functions whose binary form is the value's text: `text` in `textsend`."""
REG_OBJECTS: Final = (
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
"""Suffixes in the names of the reg* types (regclass, …) whose text for OID 0 is `-`."""
REG_OPERATORS: Final = ("oper", "operator")
"""Suffixes in the names of the reg* types (regoper, …) whose text for OID 0 is `0`."""

SCALARS: Final[dict[str, OutputFunction]] = {
    "boolsend": bool_out,
    "int2send": _integer_output(">h"),
    "int4send": _integer_output(">i"),
    "int8send": _integer_output(">q"),
    "cash_send": _integer_output(">q"),
    "oidsend": _integer_output(">I"),
    "xidsend": _integer_output(">I"),
    "cidsend": _integer_output(">I"),
    "xid8send": _integer_output(">Q"),
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
    **{f"{name}send": text_out for name in TEXT_TYPES},
    **{f"reg{name}send": _reg_output("-") for name in REG_OBJECTS},
    **{f"reg{name}send": _reg_output("0") for name in REG_OPERATORS},
}
"""Output functions, by name of the send function."""
