"""Read changes of a slot for pg_logical_slot_get_binary_changes and …_peek_… (logicalfuncs.c)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from logicalrep._roles import CLOSERS, OPENERS, has_role, meaning_of
from logicalrep.messages import XLogData
from logicalrep.standin.backend import Backend
from logicalrep.standin.protocol import ServerError
from logicalrep.standin.replication.decoding import source_failed, start_decoding
from logicalrep.standin.server_state import ServerState
from logicalrep.standin.sql.functions import parse_lsn_argument
from logicalrep.standin.values import SqlValue
from logicalrep.stream import StreamDecoder
from logicalrep.values import parse_array
from logicalrep.wire import format_lsn

_NO_LIMIT: Final = 1 << 64

_MAX_BYTES: Final = 16 << 20
"""Maximum total size of the messages that one call returns, in bytes."""


class Change(msgspec.Struct, frozen=True):
    """A result row of pg_logical_slot_get_binary_changes and similar functions."""

    lsn: str
    """LSN of the message. If the LSN in XLogData is 0, as for Relation, the LSN of the next message."""
    xid: int
    """Transaction ID of the transaction; 0 for a message outside of transactions."""
    data: str
    """The message, as the text of a bytea."""


def read_changes(
    function: str,
    arguments: Sequence[Mapping[str, Any]],
    parameters: Sequence[SqlValue],
    server: ServerState,
    backend: Backend,
) -> list[Change]:
    """Return the changes for a call of a function in `functions.CHANGES`.

    A `get` function also acknowledges the changes.

    Args:
        function: Name of the function.
        arguments: Arguments of the call, as nodes of the syntax tree.
        parameters: Values of the query's parameters.
        server: State of the server.
        backend: State of the connection.

    Raises:
        ServerError: The arguments are invalid, the slot cannot be read, or the changes exceed 16 MB.
    """
    values = [value for one in arguments for value in _values(one, parameters)]
    if is_variadic(arguments):
        values = [*values[:3], *(parse_array(values[3] or "{}") or [])]
    if len(values) < 3:
        raise ServerError(
            "42883",
            f"function {function} needs a slot, upto_lsn and upto_nchanges, "
            f"but the call has {len(arguments)} arguments",
        )
    slot_name, upto_lsn, upto_count, *options = values
    if slot_name is None:
        raise ServerError("22004", "slot name must not be null")
    if None in options:
        raise ServerError("0A000", "array must not contain nulls")
    if len(options) % 2:
        raise ServerError("0A000", "array must have even number of elements")
    if not re.fullmatch(r"\s*[+-]?\d{1,9}\s*", count := upto_count or "0"):
        raise ServerError("22P02", f'invalid input syntax for type integer: "{count}"')
    limit = _NO_LIMIT if upto_lsn is None else parse_lsn_argument(upto_lsn)
    slot = server.acquire_slot(slot_name, backend)
    try:
        given = [(str(name), value) for name, value in zip(options[::2], options[1::2], strict=True)]
        parsed, envelopes = start_decoding(server, slot, given, slot.confirmed_flush_lsn)
        if "binary" not in function:
            raise ServerError(
                "0A000",
                'logical decoding output plugin "pgoutput" produces binary output, but function '
                f'"{function}(name,pg_lsn,integer,text[])" expects textual data',
            )
        decoder = StreamDecoder(parsed.proto_version, streaming=parsed.streaming, two_phase=True)
        try:
            changes, end_lsn = _read(envelopes, decoder, limit, int(count), server.source.end_lsn)
        except ServerError:
            raise
        except Exception as error:  # a source is user code and may raise any exception
            raise source_failed(error) from None
        if "_get_" in function:
            slot.confirmed_flush_lsn = max(slot.confirmed_flush_lsn, end_lsn)
    finally:
        slot.active_pid = None
    return changes


def is_variadic(arguments: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a call passes the plugin options as one query parameter with an array (VARIADIC)."""
    return len(arguments) == 4 and arguments[3]["class"] == "PARAMETER"


def _values(node: Mapping[str, Any], parameters: Sequence[SqlValue]) -> list[str | None]:
    """Return the value of an argument as the only item of a list, or the elements of an array argument."""
    match node["class"]:
        case "CAST":
            (value,) = _values(node["child"], parameters)
            is_array = node["type_expr"]["type_name"].lower() == "list"
            return [value] if not is_array or value is None else list(parse_array(value) or [])
        case "OPERATOR" if node["type"] == "ARRAY_CONSTRUCTOR":
            return [value for one in node.get("children", ()) for value in _values(one, parameters)]
        case "PARAMETER":
            bound = parameters[int(node["identifier"]) - 1]
            return [None if bound is None else str(bound)]
        case "CONSTANT":
            return [node["literal"].get("text")]
    raise ServerError(
        "0A000",
        "an argument of pg_logical_slot_…_changes is neither a constant nor a parameter",
        "Compute the value in the client, and pass it as a parameter.",
    )


def _read(
    envelopes: Iterator[Any], decoder: StreamDecoder, limit: int, count: int, wal_end: int
) -> tuple[list[Change], int]:
    """Return the next changes of a stream, and the LSN up to which they are complete.

    The changes end at the LSN `limit`, or as soon as there are `count` changes. As on a server, they end only
    after a transaction, a stream block, or a message outside of both, so there may be more than `count`.

    Args:
        envelopes: Stream of the source.
        decoder: Decoder for the messages.
        limit: LSN at which the changes end.
        count: Number of changes after which no more are read; 0 for no limit.
        wal_end: LSN at the end of the WAL. It is returned if all changes have been read.
    """
    changes: list[Change] = []
    unit: list[tuple[int, bytes]] = []
    opened = size = reached = 0
    for envelope in envelopes:
        if not isinstance(envelope, XLogData):
            if envelope is None or envelope.wal_end >= wal_end:
                return changes, wal_end
            continue
        size += len(envelope.data)
        if size > _MAX_BYTES:
            text = f"the changes are larger than {_MAX_BYTES >> 20} MB"
            raise ServerError("54000", text, "Give upto_nchanges, or read the stream with START_REPLICATION.")
        message = decoder.decode(envelope.data)
        unit.append((envelope.wal_start, envelope.data))
        if has_role(message, *OPENERS):
            opened = meaning_of(message, "xid")
        if opened and not has_role(message, *CLOSERS):
            continue
        if (meaning_of(message, "lsn") or envelope.wal_start) >= limit:
            return changes, reached
        changes += _rows(unit, opened or meaning_of(message, "xid") or 0)
        reached = meaning_of(message, "end_lsn") or reached
        unit, opened = [], 0
        if reached >= limit or (count and len(changes) >= count):
            return changes, reached
    return changes, reached


def _rows(unit: list[tuple[int, bytes]], xid: int) -> Iterator[Change]:
    """Yield a result row with `xid` for each pair of LSN and message in `unit`.

    `unit` is a transaction, a stream block, or a message outside of both. A message with the LSN 0, such as
    Relation, gets the LSN of the next message.
    """
    lsns = [lsn for lsn, _ in unit]
    for place in range(len(lsns) - 2, -1, -1):
        lsns[place] = lsns[place] or lsns[place + 1]
    for lsn, (_, data) in zip(lsns, unit, strict=True):
        yield Change(format_lsn(lsn), xid, "\\x" + data.hex())
