"""Answer requests with logicalrep's own decoder, for the command `logicalrep vectors decode`."""

from __future__ import annotations

from typing import Any

from logicalrep import envelope
from logicalrep.errors import DecodeError, StreamError
from logicalrep.jsonlines import to_json
from logicalrep.stream import StreamDecoder, Tables, Transaction, Transactions
from logicalrep.vectors.model import Answer, Json, Request
from logicalrep.wire import format_lsn


def answer(request: Request) -> Answer:
    """Return logicalrep's answer to a request: the decoded messages, up to an invalid message and its error.

    If the messages are a whole stream, the answer also has the committed transactions and, without the option
    `binary`, the rows of each table after these transactions.
    """
    decoded: list[Json] = []
    committed: list[Transaction] | None = []
    decoder = None
    if request.version is not None:
        options = request.options
        decoder = StreamDecoder(request.version, streaming=options.streaming, two_phase=options.two_phase)
        assembled = Transactions(decoder)
    for message in request.messages:
        try:
            one = (decoder or envelope).decode(bytes.fromhex(message))
        except DecodeError as error:
            return Answer(id=request.id, messages=decoded, error=_error(error))
        decoded.append(to_json(one))
        if decoder is None or committed is None:
            continue
        try:
            transaction = assembled.feed(one)
        except StreamError:  # the messages are not a whole stream: answer without transactions
            committed = None
        else:
            committed += [] if transaction is None else [transaction]
    if decoder is None or committed is None:
        return Answer(id=request.id, messages=decoded)
    return Answer(
        id=request.id,
        messages=decoded,
        transactions=[_transaction(one) for one in committed],
        tables=None if request.options.binary else _tables(committed),
    )


def _error(error: DecodeError) -> Json:
    return {"text": str(error), "message": error.message, "field": error.field, "offset": error.offset}


def _transaction(one: Transaction) -> Json:
    return {"xid": one.xid, "commit_lsn": format_lsn(one.commit_lsn), "gid": one.gid}


def _tables(committed: list[Transaction]) -> dict[str, list[Any]]:
    tables = Tables()
    for one in committed:
        tables.apply(one)
    return {f"{table.relation.namespace}.{table.relation.name}": list(table) for table in tables.values()}
