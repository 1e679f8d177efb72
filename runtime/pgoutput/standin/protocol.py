"""The frontend/backend protocol, version 3.0: the messages of the server, as bytes.

A message is a tag, an Int32 that counts itself and what follows, and a body
(src/include/libpq/protocol.h, src/backend/libpq/pqcomm.c).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

import msgspec

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
HEAD: Final = Struct(">ci")
UINT32: Final = Struct(">I")
_TWO_UINT32: Final = Struct(">II")

PROTOCOL_3_0: Final = 3 << 16
CANCEL_REQUEST: Final = 80877102
SSL_REQUEST: Final = 80877103
GSSENC_REQUEST: Final = 80877104

Value: TypeAlias = bytes | None
"""A column's value on the wire; None is NULL."""


class Refused(Exception):
    """What a client is told in an ErrorResponse.

    Args:
        state: The SQLSTATE.
        text: What is wrong.
        hint: What to do.
        fatal: Whether the connection ends with it.
    """

    def __init__(self, state: str, text: str, hint: str = "", *, fatal: bool = False) -> None:
        super().__init__(text)
        self.state = state
        self.text = text
        self.hint = hint
        self.fatal = fatal


class Field(msgspec.Struct, frozen=True):
    """A column of a result."""

    name: str
    type_oid: int = 25


def message(tag: bytes, body: bytes = b"") -> bytes:
    """A message of either side."""
    return HEAD.pack(tag, len(body) + 4) + body


def text(value: str) -> bytes:
    """Text with its zero byte; a zero inside of it ends it, as in C."""
    return value.encode("utf-8", "surrogateescape").partition(b"\0")[0] + b"\0"


def authentication(kind: int, data: bytes = b"") -> bytes:
    """AuthenticationOk (0), SASL (10), SASLContinue (11) and SASLFinal (12)."""
    return message(b"R", INT32.pack(kind) + data)


def parameter_status(name: str, value: str) -> bytes:
    """ParameterStatus: a setting that clients want to know."""
    return message(b"S", text(name) + text(value))


def backend_key(pid: int, secret: int) -> bytes:
    """BackendKeyData: what a CancelRequest must show."""
    return message(b"K", _TWO_UINT32.pack(pid, secret))


def negotiate_version(unknown: Sequence[str]) -> bytes:
    """NegotiateProtocolVersion: 3.0 it is, and these options are not known."""
    options = b"".join(map(text, unknown))
    return message(b"v", INT32.pack(PROTOCOL_3_0) + INT32.pack(len(unknown)) + options)


def ready(status: bytes = b"I") -> bytes:
    """ReadyForQuery: outside a transaction (I), inside one (T), or inside one that has failed (E)."""
    return message(b"Z", status)


def row_description(fields: Sequence[Field], formats: Sequence[int] = ()) -> bytes:
    """RowDescription."""
    parts = [INT16.pack(len(fields))]
    for place, field in enumerate(fields):
        format_ = formats[place] if formats else 0
        parts.append(text(field.name) + _COLUMN.pack(0, 0, field.type_oid, -1, -1, format_))
    return message(b"T", b"".join(parts))


_COLUMN: Final = Struct(">IhIhih")


def parameter_description(oids: Sequence[int]) -> bytes:
    """ParameterDescription."""
    return message(b"t", INT16.pack(len(oids)) + b"".join(map(UINT32.pack, oids)))


def data_row(values: Sequence[Value]) -> bytes:
    """DataRow."""
    parts = [INT16.pack(len(values))]
    for value in values:
        parts.append(INT32.pack(-1) if value is None else INT32.pack(len(value)) + value)
    return message(b"D", b"".join(parts))


def command_complete(tag: str) -> bytes:
    """CommandComplete."""
    return message(b"C", text(tag))


def error(refused: Refused) -> bytes:
    """ErrorResponse: its fields but for those that are empty."""
    severity = "FATAL" if refused.fatal else "ERROR"
    fields = {"S": severity, "V": severity, "C": refused.state, "M": refused.text, "H": refused.hint}
    parts = (name.encode() + text(value) for name, value in fields.items() if value)
    return message(b"E", b"".join(parts) + b"\0")


def copy_both_response() -> bytes:
    """CopyBothResponse of a walsender, which names no columns."""
    return message(b"W", b"\0\0\0")
