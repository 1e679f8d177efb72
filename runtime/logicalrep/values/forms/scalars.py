"""Booleans, integers, text, bytes and identifiers."""

from __future__ import annotations

import re
import struct
from typing import Final

from logicalrep.values.forms.parsing import Form, Reader, match_whole
from logicalrep.wire import escaped_bytes, format_lsn, parse_lsn

_COUNT: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">Q")
_TID: Final = struct.Struct(">IH")
_UUID_BYTES: Final = 16
_JSON_VERSION: Final = b"\1"

_BOOL_FORM: Final = re.compile("[tf]")
_INTEGER_FORM: Final = re.compile(r"-?[0-9]{1,20}")
_UUID_FORM: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BYTES_FORM: Final = re.compile(r"\\x([0-9a-f]{2})*")
_BITS_FORM: Final = re.compile("[01]*")
_TID_FORM: Final = re.compile(r"\(([0-9]{1,10}),([0-9]{1,5})\)")
_SNAPSHOT_FORM: Final = re.compile("[0-9]+:[0-9]+:([0-9]+(,[0-9]+)*)?")
_OCTAL_FORM: Final = re.compile(r"\\([0-7]{3})")


def _integer(form: str, zero: str = "0") -> Form:
    """Return the conversions of an integer type between binary and text form.

    Args:
        form: struct format of the integer.
        zero: Text of the number 0.
    """
    number = struct.Struct(form)
    return Form(
        lambda data: str(number.unpack(data)[0] or zero),
        lambda text: number.pack(0 if text == zero else int(match_whole(_INTEGER_FORM, text, "-1 or 42")[0])),
    )


def bool_out(data: bytes) -> str:
    """Return a boolean's text, `t` or `f` (boolsend, boolout)."""
    if data not in (b"\1", b"\0"):
        raise ValueError(f"expected one byte, 00 or 01, found {data[:8].hex() or 'no byte'}")
    return "t" if data == b"\1" else "f"


def text_out(data: bytes) -> str:
    """Return the text of a value whose binary form is the text's bytes (textsend, textout)."""
    if 0 in data:
        raise ValueError("text cannot contain a zero byte")
    return data.decode("utf-8", "surrogateescape")


def text_in(text: str) -> bytes:
    """Return the binary form of text, which is the text's bytes (textin, textsend, and others)."""
    data = escaped_bytes(text)
    if 0 in data:
        raise ValueError("text cannot contain a zero character (U+0000)")
    return data


def versioned_out(data: bytes) -> str:
    """Return the text of jsonb or jsonpath, which follows a version byte (jsonb_send, jsonpath_send)."""
    if data[:1] != _JSON_VERSION:
        raise ValueError(f"expected the version byte 01, found {data[:1].hex() or 'no byte'}")
    return text_out(data[1:])


def versioned_in(text: str) -> bytes:
    """Return the binary form of jsonb or jsonpath: a version byte, then the text (jsonb_send)."""
    return _JSON_VERSION + text_in(text)


def char_out(data: bytes) -> str:
    r"""Return a "char" value's text: one ASCII character, or `\ooo` as in PostgreSQL 15+ (charout)."""
    (byte,) = data
    return chr(byte) if 0 < byte < 128 else f"\\{byte:o}" if byte else ""


def char_in(text: str) -> bytes:
    r"""Return the byte of a "char" value, given as a character or as `\ooo` (charin, charsend)."""
    if octal := _OCTAL_FORM.fullmatch(text):
        return bytes([int(octal[1], 8)])
    data = text_in(text) or b"\0"
    if len(data) > 1:
        raise ValueError(f'expected one byte for the type "char", found {len(data)}')
    return data


def bytea_out(data: bytes) -> str:
    r"""Return a bytea value's text in hex format, `\x00ff` (byteasend, byteaout)."""
    return "\\x" + data.hex()


def bytea_in(text: str) -> bytes:
    r"""Return the bytes of a bytea value in hex format, `\x00ff` (byteain, byteasend)."""
    return bytes.fromhex(match_whole(_BYTES_FORM, text, r"\x00ff")[0][2:])


def uuid_out(data: bytes) -> str:
    """Return a UUID's text: 32 hex digits in five groups (uuid_send, uuid_out)."""
    if len(data) != _UUID_BYTES:
        raise ValueError(f"a UUID has {_UUID_BYTES} bytes, not {len(data)}")
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def uuid_in(text: str) -> bytes:
    """Return the 16 bytes of a UUID (uuid_in, uuid_send)."""
    match = match_whole(_UUID_FORM, text, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
    return bytes.fromhex(match[0].replace("-", ""))


def bit_out(data: bytes) -> str:
    """Return a bit string's text, `0101` (bit_send, bit_out)."""
    (count,) = _COUNT.unpack_from(data)
    if count < 0 or len(data) != _COUNT.size + (count + 7) // 8:
        expected = f"expected {(count + 7) // 8} bytes for a bit string of {count} bits"
        raise ValueError(f"{expected}, found {len(data) - _COUNT.size}")
    bits = int.from_bytes(data[_COUNT.size :]) >> -count % 8
    return f"{bits:0{count}b}" if count else ""


def bit_in(text: str) -> bytes:
    """Return a bit string's binary form: number of bits, then the bits padded to whole bytes (bit_send)."""
    count = len(match_whole(_BITS_FORM, text, "0101")[0])
    size = (count + 7) // 8
    return _COUNT.pack(count) + (int(text.ljust(8 * size, "0"), 2) if count else 0).to_bytes(size)


def snapshot_out(data: bytes) -> str:
    """Return a snapshot's text, `xmin:xmax:xip,xip` (pg_snapshot_send, pg_snapshot_out)."""
    reader = Reader(data)
    (count,) = reader.unpack(_COUNT)
    xmin, xmax, *in_progress = struct.unpack(f">{reader.remaining // 8}Q", reader.take(reader.remaining))
    if len(in_progress) != count:
        raise ValueError(f"expected {count} transactions in progress, found {len(in_progress)}")
    return f"{xmin}:{xmax}:{','.join(map(str, in_progress))}"


def snapshot_in(text: str) -> bytes:
    """Return a snapshot's binary form: length of xip, xmin, xmax, xip (pg_snapshot_send)."""
    xmin, xmax, in_progress = match_whole(_SNAPSHOT_FORM, text, "10:20:10,14")[0].split(":")
    numbers = [int(xmin), int(xmax), *map(int, in_progress.split(",") if in_progress else ())]
    return struct.pack(f">i{len(numbers)}Q", len(numbers) - 2, *numbers)


_TEXT_TYPES: Final = ("text", "varchar", "bpchar", "name", "json_", "xml_", "pg_node_tree_")
"""Prefixes in the names of the send functions that send the value's text, such as `text` in `textsend`."""
_REG_OBJECTS: Final = (
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
"""Suffixes in the names of the reg* types (regclass, …) whose text for OID 0 is `-`; the text of any other
value is the object's OID, because the object's name is not sent in binary format."""
_REG_OPERATORS: Final = ("oper", "operator")
"""Suffixes in the names of the reg* types (regoper, …) whose text for OID 0 is `0`."""

SCALARS: Final = {
    "boolsend": Form(
        bool_out, lambda text: b"\1" if match_whole(_BOOL_FORM, text, "t or f")[0] == "t" else b"\0"
    ),
    "int2send": _integer(">h"),
    "int4send": _integer(">i"),
    "int8send": _integer(">q"),
    "cash_send": _integer(">q"),
    "oidsend": _integer(">I"),
    "xidsend": _integer(">I"),
    "cidsend": _integer(">I"),
    "xid8send": _integer(">Q"),
    "jsonb_send": Form(versioned_out, versioned_in),
    "jsonpath_send": Form(versioned_out, versioned_in),
    "charsend": Form(char_out, char_in),
    "byteasend": Form(bytea_out, bytea_in),
    "pg_mcv_list_send": Form(bytea_out, bytea_in),
    "uuid_send": Form(uuid_out, uuid_in),
    "bit_send": Form(bit_out, bit_in),
    "varbit_send": Form(bit_out, bit_in),
    "tidsend": Form(
        lambda data: "({},{})".format(*_TID.unpack(data)),
        lambda text: _TID.pack(*map(int, match_whole(_TID_FORM, text, "(0,1)").groups())),
    ),
    "pg_lsn_send": Form(
        lambda data: format_lsn(_INT64.unpack(data)[0]), lambda text: _INT64.pack(parse_lsn(text))
    ),
    "pg_snapshot_send": Form(snapshot_out, snapshot_in),
    **{f"{name}send": Form(text_out, text_in) for name in _TEXT_TYPES},
    **{f"reg{name}send": _integer(">I", "-") for name in _REG_OBJECTS},
    **{f"reg{name}send": _integer(">I") for name in _REG_OPERATORS},
}
"""Conversions between binary and text form, by name of the type's send function."""
