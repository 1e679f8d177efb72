"""Vectors of whole streams: streams of scenarios, and streams that were captured from servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

from logicalrep import envelope
from logicalrep.capturefile import CaptureFile
from logicalrep.errors import DecodeError, RecordingError
from logicalrep.jsonlines import to_json
from logicalrep.messages import XLogData
from logicalrep.stream import StreamDecoder
from logicalrep.synth import Scenario
from logicalrep.vectors.legal import VERSIONS
from logicalrep.vectors.model import Committed, Json, Options, Vector
from logicalrep.vectors.scenarios import SCENARIOS
from logicalrep.versions import OPTIONS
from logicalrep.wire import format_lsn

SEED: Final = 19
"""Seed of the scenarios whose streams are vectors."""

_FEATURES: Final[tuple[Json, ...]] = ({}, {"messages": True}, {"binary": True})


def stream_vectors() -> Iterator[Vector]:
    """Yield a vector for each scenario, protocol version and combination of its stream options."""
    for version, streaming, two_phase, features in product(
        VERSIONS, OPTIONS["streaming"], (False, True), _FEATURES
    ):
        needs = (OPTIONS["streaming"][streaming], OPTIONS["two_phase"]["on" if two_phase else "off"])
        if all(need.proto_version <= version for need in needs):
            options: Any = {"streaming": streaming, "two_phase": two_phase, **features}
            for name in SCENARIOS:
                yield _synthetic(name, version, options)


def _synthetic(name: str, version: int, options: Any) -> Vector:
    db = Scenario(proto_version=version, logical_decoding_work_mem=0, seed=SEED, **options)
    SCENARIOS[name](db)
    chosen = [key if value is True else value for key, value in options.items() if value]
    committed = [
        Committed(
            xid=state.xid,
            commit_lsn=format_lsn(state.commit_lsn),
            gid=state.gid if options["two_phase"] else None,
        )
        for state in db.history()
    ]
    tables: dict[str, list[Any]] | None = None
    if not options.get("binary"):
        tables = {table.committed_definition.full_name: db.rows(table) for table in db.tables.values()}
    data = [sent.data for sent in db.stream() if isinstance(sent, XLogData)]
    return _stream(
        f"v{version}/stream/{name}/{'+'.join(chosen)}",
        "synthetic streams",
        version,
        Options(**options),
        data,
        committed,
        tables,
    )


def capture_vectors(paths: Iterable[str | Path]) -> Iterator[Vector]:
    """Yield a vector for the stream of each capture file.

    Raises:
        RecordingError: A file cannot be read, or has a message that cannot be decoded.
    """
    for path in paths:
        try:
            yield _captured(path)
        except (DecodeError, ValueError) as error:
            raise RecordingError(f"{path}: the capture file cannot become a vector: {error}") from None


def _captured(path: str | Path) -> Vector:
    with CaptureFile(path) as capture:
        header = capture.header
        data = []
        for record in capture.records():
            if record.channel == "data":
                data.append(record.data)
            elif record.channel == "copydata":
                outer = envelope.decode(record.data)
                data += [outer.data] if isinstance(outer, XLogData) else []
    given = {name: str(value).lower() in ("true", "on", "1") for name, value in header.options.items()}
    options = Options(
        streaming=header.streaming,
        two_phase=header.slot_two_phase,
        binary=given.get("binary", False),
        messages=given.get("messages", False),
    )
    name = Path(path).name.split(".")[0]
    return _stream(
        f"v{header.proto_version}/capture/{name}",
        "captures of servers",
        header.proto_version,
        options,
        data,
    )


def _stream(
    name: str,
    group: str,
    version: int,
    options: Options,
    data: list[bytes],
    transactions: list[Committed] | None = None,
    tables: dict[str, list[Any]] | None = None,
) -> Vector:
    decoder = StreamDecoder(version, streaming=options.streaming, two_phase=options.two_phase)
    return Vector(
        id=name,
        group=group,
        version=version,
        options=options,
        messages=[one.hex() for one in data],
        legal=True,
        expected=[to_json(decoder.decode(one)) for one in data],
        transactions=transactions,
        tables=tables,
    )
