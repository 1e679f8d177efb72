"""Binary form of booleans, integers, text, bytes and identifiers."""

from __future__ import annotations

import re
import struct
from typing import Final

from pgoutput.values.binary_from_text.parsing import InputFunction, match_whole
from pgoutput.values.text_from_binary.scalars import REG_OBJECTS, REG_OPERATORS, TEXT_TYPES
from pgoutput.wire import escaped_bytes, parse_lsn

_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BYTES: Final = re.compile(r"\\x([0-9a-f]{2})*")
_BITS: Final = re.compile("[01]*")
_TID: Final = re.compile(r"\(([0-9]{1,10}),([0-9]{1,5})\)")
_SNAPSHOT: Final = re.compile("[0-9]+:[0-9]+:([0-9]+(,[0-9]+)*)?")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def _integer_input(form: str) -> InputFunction:
    pack = struct.Struct(form).pack
    return lambda text: pack(int(match_whole(_INTEGER, text, "-1 or 42")[0]))


def _reg_input(zero: str) -> InputFunction:
    """Return the input function of a reg* type; a text is the object's OID, or `zero` for OID 0.

    An object's name cannot be converted, because only the server knows its OID.
    """
    number = _integer_input(">I")
    return lambda text: number("0" if text == zero else text)


def bool_in(text: str) -> bytes:
    """Return a boolean's binary form: 1 or 0 (boolin, boolsend)."""
    return {"t": b"\1", "f": b"\0"}[match_whole(re.compile("[tf]"), text, "t or f")[0]]


def text_in(text: str) -> bytes:
    """Return the binary form of text, which is the text's bytes (textin, textsend, and others)."""
    data = escaped_bytes(text)
    if 0 in data:
        raise ValueError("text cannot contain a zero character")
    return data


def versioned_in(text: str) -> bytes:
    """Return the binary form of jsonb or jsonpath: a version byte, then the text (jsonb_send)."""
    return b"\1" + text_in(text)


def char_in(text: str) -> bytes:
    r"""Return the byte of a "char" value, given as a character or as `\ooo` (charin, charsend)."""
    if octal := _OCTAL.fullmatch(text):
        return bytes([int(octal[1], 8)])
    data = text_in(text) or b"\0"
    if len(data) > 1:
        raise ValueError("more than one byte")
    return data


def bytea_in(text: str) -> bytes:
    r"""Return the bytes of a bytea value in hex format, `\x00ff` (byteain, byteasend)."""
    return bytes.fromhex(match_whole(_BYTES, text, r"\x00ff")[0][2:])


def uuid_in(text: str) -> bytes:
    """Return the 16 bytes of a UUID (uuid_in, uuid_send)."""
    return bytes.fromhex(match_whole(_UUID, text, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")[0].replace("-", ""))


def bit_in(text: str) -> bytes:
    """Return a bit string's binary form: number of bits, then the bits padded to whole bytes (bit_send)."""
    count = len(match_whole(_BITS, text, "0101")[0])
    size = (count + 7) // 8
    return struct.pack(">i", count) + (int(text.ljust(8 * size, "0"), 2) if count else 0).to_bytes(size)


def tid_in(text: str) -> bytes:
    """Return a tuple identifier's binary form: block and offset (tidin, tidsend)."""
    return struct.pack(">IH", *map(int, match_whole(_TID, text, "(0,1)").groups()))


def lsn_in(text: str) -> bytes:
    """Return an LSN's binary form (pg_lsn_in, pg_lsn_send)."""
    return struct.pack(">Q", parse_lsn(text))


def snapshot_in(text: str) -> bytes:
    """Return a snapshot's binary form: length of xip, xmin, xmax, xip (pg_snapshot_send)."""
    xmin, xmax, in_progress = match_whole(_SNAPSHOT, text, "10:20:10,14")[0].split(":")
    numbers = [int(xmin), int(xmax), *map(int, in_progress.split(",") if in_progress else ())]
    return struct.pack(f">i{len(numbers)}Q", len(numbers) - 2, *numbers)


SCALARS: Final[dict[str, InputFunction]] = {
    "boolsend": bool_in,
    "int2send": _integer_input(">h"),
    "int4send": _integer_input(">i"),
    "int8send": _integer_input(">q"),
    "cash_send": _integer_input(">q"),
    "oidsend": _integer_input(">I"),
    "xidsend": _integer_input(">I"),
    "cidsend": _integer_input(">I"),
    "xid8send": _integer_input(">Q"),
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
    **{f"{name}send": text_in for name in TEXT_TYPES},
    **{f"reg{name}send": _reg_input("-") for name in REG_OBJECTS},
    **{f"reg{name}send": _reg_input("0") for name in REG_OPERATORS},
}
"""Input functions, by name of the send function."""
