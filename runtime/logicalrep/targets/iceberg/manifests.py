"""Read and write snapshots. pyiceberg (0.12) cannot write a snapshot that deletes single rows.

A snapshot has a list of manifests, and each manifest lists data files, or delete files. A commit rewrites
only manifests from which it removes files, and small manifests if there are many.

Sections of the specification: "Manifests", "Manifest Lists", "Snapshots", "Optional Snapshot Summary Fields".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from threading import RLock
from typing import Any, Final, NamedTuple
from uuid import uuid4

from cachetools import LRUCache, cached
from pyiceberg import manifest as avro
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile as ManifestedFile, DataFileContent, ManifestContent, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, UpdateMetrics, update_snapshot_summaries

from logicalrep.targets.iceberg.columns import lacks_columns
from logicalrep.targets.iceberg.partitions import unpartitioned

_COMPRESSION: Final = "deflate"

_MAX_MANIFESTS: Final = 10
"""Maximum number of small manifests; a commit that would add one more combines them."""
_SMALL_MANIFEST: Final = 1000
"""A manifest with fewer files than this number is small."""
_MAX_ENTRIES: Final = 20_000
"""Maximum number of manifest entries that are cached in memory."""


class Manifest(NamedTuple):
    """A manifest, and its entries of files that the snapshot contains."""

    file: avro.ManifestFile
    entries: list[ManifestEntry]


class _DeletesWriter(avro.ManifestWriterV2):
    """Writes manifests of delete files; pyiceberg has no such writer."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


_WRITERS: Final = {ManifestContent.DATA: avro.ManifestWriterV2, ManifestContent.DELETES: _DeletesWriter}


def read_manifests(io: FileIO, snapshot: Snapshot | None) -> list[Manifest]:
    """Return the manifests of a snapshot, without manifests that list no files."""
    files = () if snapshot is None else snapshot.manifests(io)
    manifests = (Manifest(file, _read_entries(io, file)) for file in files)
    return [one for one in manifests if one.entries]


@cached(LRUCache(_MAX_ENTRIES, getsizeof=len), key=lambda io, file: file.manifest_path, lock=RLock())
def _read_entries(io: FileIO, file: avro.ManifestFile) -> list[ManifestEntry]:
    """Return the entries of a manifest. They can be cached, because a manifest never changes."""
    return file.fetch_manifest_entry(io)


def write_snapshot(
    metadata: TableMetadata,
    io: FileIO,
    parent: Snapshot | None,
    manifests: Sequence[Manifest],
    added: Sequence[ManifestedFile],
    removed: Collection[str],
    schema: Schema,
    properties: Mapping[str, str],
) -> tuple[Snapshot, list[Manifest]]:
    """Write the manifests and the manifest list of a new snapshot.

    Args:
        metadata: The metadata of the table.
        io: Writes the files.
        parent: The snapshot that the new one follows; None if there is none.
        manifests: The manifests of the parent.
        added: The new data files and delete files.
        removed: URIs of the data files and delete files of the parent that the snapshot removes.
        schema: The schema of the snapshot.
        properties: Further fields of the snapshot's summary.

    Returns:
        The snapshot, and its manifests.
    """
    number = metadata.new_snapshot_id()
    sequence = metadata.next_sequence_number()
    gone = [one.data_file for of in manifests for one in of.entries if one.data_file.file_path in removed]
    new: list[Manifest] = []
    specs = metadata.specs()
    groups: dict[tuple[ManifestContent, int], tuple[list[Manifest], list[ManifestedFile]]]
    groups = defaultdict(lambda: ([], []))
    for one in manifests:
        groups[one.file.content, one.file.partition_spec_id][0].append(one)
    for file in added:
        groups[_content(file), file.spec_id][1].append(file)
    for (content, spec), (known, files) in groups.items():
        changed = [one for one in known if any(e.data_file.file_path in removed for e in one.entries)]
        small = [one for one in known if len(one.entries) < _SMALL_MANIFEST]
        if len(small) + bool(files) > _MAX_MANIFESTS:
            changed += [one for one in small if one not in changed]
        new += [one for one in known if one not in changed]
        if not files and not changed:
            continue
        output = io.new_output(f"{metadata.location}/metadata/{uuid4()}-m0.avro")
        partition = specs.get(spec) or unpartitioned(specs)
        # Use a schema with all columns of the partition fields: `schema` may lack columns that were dropped.
        schemas = (one for one in (schema, *metadata.schemas) if not lacks_columns(one, partition))
        with _WRITERS[content](partition, next(schemas), output, number, _COMPRESSION) as manifest:
            entries = _write_entries(manifest, files, number, sequence, changed, removed)
        written = manifest.to_manifest_file()
        written.sequence_number = sequence
        new.append(Manifest(written, entries))
    path = f"{metadata.location}/metadata/snap-{number}-0-{uuid4()}.avro"
    parent_id = None if parent is None else parent.snapshot_id
    listed = avro.write_manifest_list(2, io.new_output(path), number, parent_id, sequence, _COMPRESSION)
    with listed:
        listed.add_manifests([one.file for one in new])
    counts = UpdateMetrics()
    for file in added:
        counts.add_file(file)
    for file in gone:
        counts.remove_file(file)
    only_adds = not gone and all(file.content == DataFileContent.DATA for file in added)
    operation = Operation.APPEND if only_adds else Operation.OVERWRITE
    before = {} if parent is None or parent.summary is None else parent.summary.additional_properties
    summary = update_snapshot_summaries(Summary(operation, **counts.to_dict(), **properties), before)
    fields: dict[str, Any] = {
        "snapshot-id": number,
        "parent-snapshot-id": parent_id,
        "sequence-number": sequence,
        "manifest-list": path,
        "summary": summary,
        "schema-id": schema.schema_id,
    }
    snapshot = Snapshot(**fields)
    return snapshot, [one for one in new if one.entries]


def _write_entries(
    manifest: avro.ManifestWriter,
    files: Iterable[ManifestedFile],
    snapshot: int,
    sequence: int,
    known: Iterable[Manifest],
    removed: Collection[str],
) -> list[ManifestEntry]:
    """Write entries: new `files`, and those of `known` (as deleted if in `removed`). Return the live ones."""
    added = avro.ManifestEntryStatus.ADDED
    kept = [ManifestEntry.from_args(status=added, snapshot_id=snapshot, data_file=file) for file in files]
    for entry in kept:
        manifest.add(entry)
        entry.sequence_number = entry.file_sequence_number = sequence
    for entry in (entry for one in known for entry in one.entries):
        if entry.data_file.file_path in removed:
            manifest.delete(entry)
        else:
            manifest.existing(entry)
            kept.append(entry)
    return kept


def _content(file: ManifestedFile) -> ManifestContent:
    return ManifestContent.DATA if file.content == DataFileContent.DATA else ManifestContent.DELETES
