"""Vectors of illegal messages: each is a legal message with one fault."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from logicalrep import _protocols, envelope
from logicalrep._build import fitted
from logicalrep._layout import Field, Message, sides
from logicalrep._roles import classes
from logicalrep._walk import Piece, walk
from logicalrep.errors import DecodeError
from logicalrep.jsonlines import to_json
from logicalrep.stream import StreamDecoder, encode_for
from logicalrep.vectors.legal import Context, Sample, contexts, envelope_vectors, samples
from logicalrep.vectors.model import Fault, Kind, Options, Vector

_BASES: Final = re.compile(r"usual|key=text|old=text|new=binary")
"""Matches the names of the legal messages to which faults are applied."""

_BAD_VALUES: Final = {
    "bool": (2, 255),
    "enum": (0, ord("?")),
    "flags": (0x80, 0xFF),
    "literal": (1, 255),
}
"""Invalid values of fields of one byte, by kind of field."""

_BAD_TAGS: Final = b"?\x00\xff"


class _Fault(NamedTuple):
    name: str
    kind: Kind
    data: bytes


def illegal_vectors() -> Iterator[Vector]:
    """Yield the vectors of illegal messages of all protocol versions."""
    seen: set[tuple[object, ...]] = set()
    for context, sample in samples():
        form = (context.version, sample.layout.name, sample.name, *context.form(sample.layout))
        if form in seen or not _BASES.fullmatch(sample.name):
            continue
        seen.add(form)
        data = encode_for(sample.message, context.version)
        protocol = _protocols.VERSIONS[max(context.version, sample.layout.since)]
        pieces = list(walk(protocol, data, context.in_stream, context.streaming))
        for fault in _faults(sample.layout, data, pieces):
            name = f"{sample.layout.name}/{sample.name}/{fault.name}"
            yield from _vector(context, name, fault, sample.options(context.streaming), sample.before)
    yield from _misplaced()


def illegal_envelope_vectors() -> Iterator[Vector]:
    """Yield the vectors of illegal messages of the streaming replication protocol."""
    for legal in envelope_vectors():
        if not legal.id.endswith("/usual"):
            continue
        data = bytes.fromhex(legal.messages[0])
        layout = _protocols.ENVELOPE.by_tag[data[0]]
        for fault in _faults(layout, data, list(walk(_protocols.ENVELOPE, data, False, "off"))):
            try:
                envelope.decode(fault.data)
            except DecodeError as error:
                yield Vector(
                    id=f"{legal.id.removesuffix('/usual')}/bad/{fault.name}",
                    group="illegal envelopes",
                    version=None,
                    options=Options(),
                    messages=[fault.data.hex()],
                    legal=False,
                    expected=[],
                    fault=_explained(fault.kind, error),
                )


def _faults(layout: Message, data: bytes, pieces: Sequence[Piece]) -> Iterator[_Fault]:
    cuts = {cut for piece in pieces for cut in (piece.start, piece.end - 1)}
    for cut in sorted(cuts - {0, len(data)}):
        yield _Fault(f"cut-{cut}", "truncated", data[:cut])
    yield _Fault("one-more-byte", "trailing", data + b"\0")
    for piece in pieces:
        before, after, size = data[: piece.start], data[piece.end :], piece.end - piece.start
        kind, bad = _bad_values(layout, data, piece)
        for value in bad:
            raw = value.to_bytes(size, "big")
            yield _Fault(f"{piece.path}={raw.hex()}", kind, before + raw + after)


def _bad_values(layout: Message, data: bytes, piece: Piece) -> tuple[Kind, list[int]]:
    """Return (kind of fault, invalid values) for the bytes `piece` of an encoded message.

    Each value is an integer that replaces these bytes, in network byte order.
    """
    value = int.from_bytes(data[piece.start : piece.end], "big")
    if piece.notation.startswith("Byte1('"):
        others = [ord(one) for one in "NKO" if piece.path.partition(".")[0] in ("key", "old", "new")]
        is_tuple = piece.path.endswith(".tag") and "[" not in piece.path
        return "tag", [*_BAD_TAGS, *(one for one in others if is_tuple and one != value)]
    field = _field(layout, piece.path)
    kind = field.kind if field is not None else ""
    if kind in ("count", "length") or (not piece.type and piece.path.endswith((".count", ".length"))):
        greatest = (1 << 8 * (piece.end - piece.start)) - 1
        return "size", sorted({value + 1, greatest >> 1, greatest} | ({value - 1} if value else set()))
    return "value", list(_BAD_VALUES.get(kind, ()))


def _field(layout: Message, path: str) -> Field | None:
    """Return the field of a layout at a path such as `columns[0].flags`; None if there is no such field."""
    fields = tuple(sides(layout.fields))
    found: Field | None = None
    by_name = {field.name: field for field in fields}
    if path in by_name:
        return by_name[path]
    for name in re.sub(r"\[\d+\]", "", path).split("."):
        found = next((field for field in fields if field.name == name), None)
        fields = found.fields if found is not None and found.element == "struct" else ()
    return found


def _vector(
    context: Context, name: str, fault: _Fault, options: Options, before: Sequence[Any]
) -> Iterator[Vector]:
    """Yield a vector whose last message is illegal; nothing if logicalrep can decode this message.

    Args:
        context: The context of the messages.
        name: Last part of the vector's id.
        fault: The illegal message, and the kind of its fault.
        options: Options of START_REPLICATION for the vector.
        before: Legal messages before the illegal message.
    """
    decoder = StreamDecoder(context.version, streaming=context.streaming, two_phase=options.two_phase)
    for message in before:
        decoder.decode(encode_for(message, context.version))
    try:
        decoder.decode(fault.data)
    except DecodeError as error:
        yield Vector(
            id=f"{context.name}/bad/{name}",
            group=f"illegal: {fault.kind}",
            version=context.version,
            options=options,
            messages=[*(encode_for(one, context.version).hex() for one in before), fault.data.hex()],
            legal=False,
            expected=[to_json(one) for one in before],
            fault=_explained(fault.kind, error),
        )


def _explained(kind: Kind, error: DecodeError) -> Fault:
    return Fault(kind=kind, text=str(error), message=error.message, field=error.field, offset=error.offset)


def _misplaced() -> Iterator[Vector]:
    """Yield the vectors of messages that are legal only in another protocol version or context."""
    usual: dict[str, list[tuple[Context, Sample]]] = {}
    for context, sample in samples():
        if sample.name == "usual":
            usual.setdefault(sample.layout.name, []).append((context, sample))
    insert = classes("insert")[0].__name__
    for context in contexts():
        if context.streaming == "off":
            yield from _vector(context, "empty", _Fault("", "truncated", b""), Options(), ())
        for name, places in usual.items():
            layout = places[0][1].layout
            if context.in_stream and not (
                layout.role == "open_block" or any(place.in_stream for place, _ in places)
            ):
                continue
            version = max(context.version, layout.since)
            forms = {
                encode_for(sample.message, version): (place, sample)
                for place, sample in places
                if place.version in (context.version, version)
            }
            options = Options(
                streaming=context.streaming,
                two_phase=layout.option == "two_phase" and context.has(layout),
                messages=layout.option == "messages",
            )
            kind: Kind = "version" if context.version < layout.since else "context"
            for i, (data, (place, sample)) in enumerate(forms.items()):
                before = sample.before if place.in_stream == context.in_stream else ()
                if context.in_stream and not before:
                    before = next(one.before[:1] for other, one in usual[insert] if other == context)
                fault = _Fault("", kind, data)
                before = [fitted(one, context.version) for one in before]
                yield from _vector(context, f"{name}/{kind}{i or ''}", fault, options, before)
