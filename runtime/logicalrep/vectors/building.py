"""Derive the vectors from the spec, and write them as a kit."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from logicalrep import __version__, _protocols
from logicalrep.vectors.illegal import illegal_envelope_vectors, illegal_vectors
from logicalrep.vectors.kit import MANIFEST
from logicalrep.vectors.kit_schema import schema
from logicalrep.vectors.legal import VERSIONS, envelope_vectors, message_vectors
from logicalrep.vectors.model import FORMAT, File, Manifest, Vector
from logicalrep.vectors.streams import SEED, capture_vectors, stream_vectors


def build_vectors(captures: Iterable[str | Path] = ()) -> Iterator[Vector]:
    """Yield all test vectors. The output is deterministic.

    Args:
        captures: Capture files whose streams become vectors too.

    Raises:
        RecordingError: A capture file cannot be read.
    """
    for vectors in _by_file(captures).values():
        yield from vectors


def write_kit(folder: str | Path, captures: Iterable[str | Path] = ()) -> Manifest:
    """Write a kit: files of vectors, their JSON Schema, and a manifest. Return the manifest.

    Args:
        folder: Folder of the kit. It is created if necessary. The files of an earlier kit are replaced.
        captures: Capture files whose streams become vectors too.

    Raises:
        RecordingError: A capture file cannot be read.
        OSError: A file cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    groups: Counter[str] = Counter()
    legal = 0
    files: list[File] = []
    for name, vectors in _by_file(captures).items():
        digest, count = hashlib.sha256(), 0
        with (folder / name).open("wb") as file:
            for vector in vectors:
                line = msgspec.json.encode(vector) + b"\n"
                file.write(line)
                digest.update(line)
                groups[vector.group] += 1
                legal += vector.legal
                count += 1
        files.append(File(path=name, vectors=count, sha256=digest.hexdigest()))
    manifest = Manifest(
        format=FORMAT,
        logicalrep=__version__,
        spec=spec_digest(),
        seed=SEED,
        vectors=groups.total(),
        legal=legal,
        illegal=groups.total() - legal,
        groups=dict(groups),
        files=files,
    )
    for name, content in (("schema.json", schema()), (MANIFEST, manifest)):
        (folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    return manifest


def spec_digest() -> str:
    """Return the SHA-256, in hex, of the layouts of all messages of the released protocol versions."""
    layouts = [_protocols.VERSIONS[version] for version in VERSIONS]
    return hashlib.sha256(msgspec.json.encode([*layouts, _protocols.ENVELOPE])).hexdigest()


def _by_file(captures: Iterable[str | Path]) -> Mapping[str, Iterator[Vector]]:
    return {
        "messages.jsonl": message_vectors(),
        "illegal.jsonl": illegal_vectors(),
        "envelopes.jsonl": envelope_vectors(),
        "illegal-envelopes.jsonl": illegal_envelope_vectors(),
        "streams.jsonl": stream_vectors(),
        "captures.jsonl": capture_vectors(captures),
    }
