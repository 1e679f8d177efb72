"""Frontend/backend protocol 3.0: encode the messages that a server sends.

A message consists of a tag, an Int32 length and a body. The length counts the bytes of itself and of the body
(src/include/libpq/protocol.h, src/backend/libpq/pqcomm.c).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

import msgspec

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
HEADER: Final = Struct(">ci")
"""Header of a message: the tag, and the length of the message without the tag."""
UINT32: Final = Struct(">I")
_TWO_UINT32: Final = Struct(">II")

PROTOCOL_3_0: Final = 3 << 16
CANCEL_REQUEST: Final = 80877102
SSL_REQUEST: Final = 80877103
GSSENC_REQUEST: Final = 80877104

EncodedValue: TypeAlias = bytes | None
"""A column value as encoded in a DataRow or Bind message; None is NULL."""


class ServerError(Exception):
    """An error that the server reports to the client in an ErrorResponse message.

    Args:
        sqlstate: SQLSTATE code of five characters.
        text: Primary error message.
        hint: Advice for the user; empty for none.
        detail: More about the error; empty for none.
        fatal: Whether the server closes the connection after the error.
    """

    def __init__(
        self, sqlstate: str, text: str, hint: str = "", *, detail: str = "", fatal: bool = False
    ) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        self.text = text
        self.hint = hint
        self.detail = detail
        self.fatal = fatal


class Field(msgspec.Struct, frozen=True):
    """A column of a query result, as described in a RowDescription message."""

    name: str
    """Name of the column."""
    type_oid: int = 25
    """OID of the column's type; text by default."""


def encode_message(tag: bytes, body: bytes = b"") -> bytes:
    """Encode a message from its tag and body."""
    return HEADER.pack(tag, len(body) + 4) + body


def encode_string(value: str) -> bytes:
    """Encode a zero-terminated string. A zero character inside the string ends it, as in C."""
    return value.encode("utf-8", "surrogateescape").partition(b"\0")[0] + b"\0"


def authentication(kind: int, data: bytes = b"") -> bytes:
    """Encode AuthenticationOk (`kind` 0) or AuthenticationSASL (10), …SASLContinue (11), …SASLFinal (12)."""
    return encode_message(b"R", INT32.pack(kind) + data)


def parameter_status(name: str, value: str) -> bytes:
    """Encode ParameterStatus, which reports a setting's value to the client."""
    return encode_message(b"S", encode_string(name) + encode_string(value))


def backend_key(pid: int, secret: int) -> bytes:
    """Encode BackendKeyData: the process ID and the secret key that a CancelRequest must contain."""
    return encode_message(b"K", _TWO_UINT32.pack(pid, secret))


def negotiate_version(unknown: Sequence[str]) -> bytes:
    """Encode NegotiateProtocolVersion for protocol 3.0, with the names of unsupported protocol options."""
    options = b"".join(map(encode_string, unknown))
    return encode_message(b"v", INT32.pack(PROTOCOL_3_0) + INT32.pack(len(unknown)) + options)


def ready_for_query(transaction_status: bytes) -> bytes:
    """Encode ReadyForQuery with the transaction status: idle (I), in a transaction (T) or failed (E)."""
    return encode_message(b"Z", transaction_status)


def row_description(fields: Sequence[Field], formats: Sequence[int] = ()) -> bytes:
    """Encode RowDescription, the columns of a query result. An empty `formats` means text for all columns."""
    parts = [INT16.pack(len(fields))]
    for number, field in enumerate(fields):
        format_ = formats[number] if formats else 0
        parts.append(encode_string(field.name) + _COLUMN.pack(0, 0, field.type_oid, -1, -1, format_))
    return encode_message(b"T", b"".join(parts))


_COLUMN: Final = Struct(">IhIhih")


def parameter_description(oids: Sequence[int]) -> bytes:
    """Encode ParameterDescription with the type OIDs of a prepared statement's parameters."""
    return encode_message(b"t", INT16.pack(len(oids)) + b"".join(map(UINT32.pack, oids)))


def data_row(values: Sequence[EncodedValue]) -> bytes:
    """Encode DataRow, one row of a query result."""
    parts = [INT16.pack(len(values))]
    for value in values:
        parts.append(INT32.pack(-1) if value is None else INT32.pack(len(value)) + value)
    return encode_message(b"D", b"".join(parts))


def command_complete(tag: str) -> bytes:
    """Encode CommandComplete with a command tag such as SELECT 1."""
    return encode_message(b"C", encode_string(tag))


def error_response(error: ServerError) -> bytes:
    """Encode ErrorResponse for an error. An empty detail or hint is left out."""
    severity = "FATAL" if error.fatal else "ERROR"
    texts = (severity, severity, error.sqlstate, error.text, error.detail, error.hint)
    parts = (
        name.encode() + encode_string(value) for name, value in zip("SVCMDH", texts, strict=True) if value
    )
    return encode_message(b"E", b"".join(parts) + b"\0")


def copy_both_response() -> bytes:
    """Encode CopyBothResponse without columns, as a walsender sends it before a stream."""
    return encode_message(b"W", b"\0\0\0")


def copy_out(data: bytes) -> bytes:
    """Encode the output of COPY … TO STDOUT: CopyOutResponse without columns, CopyData, and CopyDone."""
    contents = encode_message(b"d", data) if data else b""
    return encode_message(b"H", b"\0\0\0") + contents + encode_message(b"c")
