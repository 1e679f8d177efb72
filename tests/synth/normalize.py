"""Normalize streams for comparison: hide LSNs, xids, OIDs, times and the bounds of stream blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from logicalrep import messages
from logicalrep.messages import Message, TupleData, XLogData
from logicalrep.stream import StreamDecoder
from logicalrep.synth import StreamOptions


def normalize(
    stream: Iterable[XLogData], options: StreamOptions, *, namespace: str, ignored: str | None = None
) -> list[tuple[str, ...]]:
    """Return the messages of a stream in a form that is equal for every server.

    All messages of a streamed transaction are moved to the transaction's end, also of rolled-back savepoints.
    Empty streamed transactions are omitted. So are Stream Aborts of savepoints that were never in a stream
    block, which PostgreSQL 18.0 to 18.4 sends (bug 19616).

    Args:
        stream: Envelopes that the walsender sent.
        options: Options of the stream.
        namespace: Schema of the tables, which is replaced by `s` in the result.
        ignored: Prefix of logical messages to omit.
    """
    return _Normalizer(options, namespace, ignored).run(stream)


class _Normalizer:
    def __init__(self, options: StreamOptions, namespace: str, ignored: str | None) -> None:
        self._decoder = StreamDecoder(
            options.proto_version, streaming=options.streaming, two_phase=options.two_phase
        )
        self._namespace, self._ignored = namespace, ignored
        self._names: dict[tuple[str, int], str] = {}
        self._streamed: dict[int, list[tuple[str, ...]]] = {}
        self._seen_in: dict[int, set[int]] = {}
        self._out: list[tuple[str, ...]] = []
        self._block: int | None = None

    def run(self, stream: Iterable[XLogData]) -> list[tuple[str, ...]]:
        for one in stream:
            message = self._decoder.decode(one.data)
            if isinstance(message, messages.LogicalMessage) and message.prefix == self._ignored:
                continue
            self._take(message, one.wal_start == 0)
        return self._out

    def _take(self, message: Message, without_lsn: bool) -> None:
        match message:
            case messages.StreamStart(xid=xid):
                self._block = xid
                self._streamed.setdefault(xid, [])
            case messages.StreamStop():
                self._block = None
            case messages.StreamAbort(xid=xid, subxid=subxid) if xid != subxid:
                if subxid in self._seen_in.get(xid, ()):
                    self._streamed[xid].append(self._text(message, without_lsn))
            case (
                messages.StreamCommit(xid=xid)
                | messages.StreamAbort(xid=xid)
                | messages.StreamPrepare(prepare_lsn=xid)
            ):
                inside = self._streamed.pop(xid, [])
                self._seen_in.pop(xid, None)
                if inside or isinstance(message, messages.StreamPrepare):
                    self._out += [*inside, self._text(message, without_lsn)]
            case _ if self._block is not None:
                self._seen_in.setdefault(self._block, set()).add(getattr(message, "xid", None) or 0)
                self._streamed[self._block].append(self._text(message, without_lsn))
            case _:
                self._out.append(self._text(message, without_lsn))

    def _text(self, message: Message, without_lsn: bool) -> tuple[str, ...]:
        name = type(message).__name__
        if isinstance(message, messages.Insert | messages.Update | messages.Delete):
            message = self._without_element_oids(message)
        fields = (
            f"{field}={self._shown(field, value)}" for field, value in msgspec.structs.asdict(message).items()
        )
        return (name, "0/0" if without_lsn else "", *fields)

    def _without_element_oids(self, message: Message) -> Message:
        """Return the change without the element OIDs in binary arrays of user-defined types."""
        relation = self._decoder.relations[message.relation_oid]  # type: ignore[attr-defined]
        types = [self._decoder.types.get(column.type_oid) for column in relation.columns]
        arrays = [type_ is not None and type_.name.startswith("_") for type_ in types]

        def without(cells: TupleData) -> TupleData:
            return tuple(
                cell[:8] + cell[12:] if array and isinstance(cell, bytes) else cell
                for cell, array in zip(cells, arrays, strict=True)
            )

        given = {name: getattr(message, name, None) for name in ("new", "key", "old")}
        return msgspec.structs.replace(message, **{k: without(v) for k, v in given.items() if v is not None})

    def _shown(self, field: str, value: Any) -> str:
        if field.endswith(("_lsn", "_time")) or field == "lsn":
            return str(value is None)
        if field in ("xid", "subxid", "oid", "relation_oid", "type_oid") and value is not None:
            return self._named(field, value)
        if field == "relation_oids":
            return ", ".join(self._named("oid", oid) for oid in value)
        if field == "columns":
            return ", ".join(
                f"{c.name} {c.flags} {self._named('oid', c.type_oid)} {c.type_modifier}" for c in value
            )
        if field == "namespace":
            return "s" if value == self._namespace else str(value)
        if field == "gid":
            return str(value).removeprefix(f"{self._namespace} ")
        return repr(value)

    def _named(self, field: str, value: int) -> str:
        """Return a label for an xid or OID. Labels are numbered in the order in which the values appear."""
        kind = "xid" if field.endswith("xid") else "oid"
        if kind == "oid" and value < 10_000:
            return str(value)
        return self._names.setdefault((kind, value), f"{kind} {len(self._names)}")
