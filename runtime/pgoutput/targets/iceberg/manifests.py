"""The files of a snapshot, and new snapshots. pyiceberg (0.12) writes no snapshot that deletes single rows.

A snapshot has a list of manifests, and each manifest lists data files, or delete files. A commit leaves
manifests as they are, except those whose files it removes, and small ones if there are many.

Sections of the Iceberg specification: "Manifests", "Manifest Lists", "Snapshots", "Optional Snapshot Summary
Fields" of the appendix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile as ManifestedFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

_COMPRESSION: Final = "deflate"

_MAX_MANIFESTS: Final = 10
"""Number of small manifests from which a commit combines them."""
_SMALL_MANIFEST: Final = 1000
"""Number of files below which a manifest is small."""


class Manifest(NamedTuple):
    """A manifest, and the entries of the files that the snapshot has."""

    file: ManifestFile
    entries: list[ManifestEntry]


class _DeletesWriter(ManifestWriterV2):
    """A writer of manifests of delete files, which pyiceberg lacks."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


_WRITERS: Final = {ManifestContent.DATA: ManifestWriterV2, ManifestContent.DELETES: _DeletesWriter}


def read_manifests(io: FileIO, snapshot: Snapshot | None) -> list[Manifest]:
    """Return the manifests of a snapshot that have files."""
    files = () if snapshot is None else snapshot.manifests(io)
    manifests = (Manifest(file, file.fetch_manifest_entry(io)) for file in files)
    return [one for one in manifests if one.entries]


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
        removed: URIs of data files and delete files of the parent that the snapshot does not have.
        schema: The schema of the snapshot.
        properties: What the summary of the snapshot says besides.

    Returns:
        The snapshot, and its manifests.
    """
    number = metadata.new_snapshot_id()
    sequence = metadata.next_sequence_number()
    gone = [one.data_file for of in manifests for one in of.entries if one.data_file.file_path in removed]
    new: list[Manifest] = []
    for content, writer in _WRITERS.items():
        known = [one for one in manifests if one.file.content == content]
        files = [one for one in added if _content(one) == content]
        changed = [one for one in known if any(e.data_file.file_path in removed for e in one.entries)]
        small = [one for one in known if len(one.entries) < _SMALL_MANIFEST]
        if len(small) + bool(files) > _MAX_MANIFESTS:
            changed += [one for one in small if one not in changed]
        new += [one for one in known if one not in changed]
        if not files and not changed:
            continue
        entries: list[ManifestEntry] = []
        output = io.new_output(f"{metadata.location}/metadata/{uuid4()}-m0.avro")
        with writer(metadata.spec(), schema, output, number, _COMPRESSION) as manifest:
            for file in files:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file
                )
                manifest.add(entry)
                entry.sequence_number = entry.file_sequence_number = sequence
                entries.append(entry)
            for entry in (entry for one in changed for entry in one.entries):
                if entry.data_file.file_path in removed:
                    manifest.delete(entry)
                else:
                    manifest.existing(entry)
                    entries.append(entry)
        new.append(Manifest(manifest.to_manifest_file(), entries))
    path = f"{metadata.location}/metadata/snap-{number}-0-{uuid4()}.avro"
    parent_id = None if parent is None else parent.snapshot_id
    with write_manifest_list(2, io.new_output(path), number, parent_id, sequence, _COMPRESSION) as listed:
        listed.add_manifests([one.file for one in new])
    for one in new:
        if one.file.added_snapshot_id == number:
            one.file.sequence_number = sequence
    summary = _summary(parent, added, gone, properties)
    snapshot = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=parent_id,
        sequence_number=sequence,
        manifest_list=path,
        summary=summary,
        schema_id=schema.schema_id,
    )
    return snapshot, [one for one in new if one.entries]


def _content(file: ManifestedFile) -> ManifestContent:
    return ManifestContent.DATA if file.content == DataFileContent.DATA else ManifestContent.DELETES


_COUNTS: Final = (
    (DataFileContent.DATA, "added-data-files", "deleted-data-files", "total-data-files"),
    (DataFileContent.POSITION_DELETES, "added-delete-files", "removed-delete-files", "total-delete-files"),
)
"""For each content, the fields of a summary with numbers of files."""
_ROWS: Final = (
    (DataFileContent.DATA, "added-records", "deleted-records", "total-records"),
    (
        DataFileContent.POSITION_DELETES,
        "added-position-deletes",
        "removed-position-deletes",
        "total-position-deletes",
    ),
)
"""For each content, the fields of a summary with numbers of rows."""


def _summary(
    parent: Snapshot | None,
    added: Iterable[ManifestedFile],
    gone: Iterable[ManifestedFile],
    properties: Mapping[str, str],
) -> Summary:
    """Return the summary of a snapshot: its operation, what it adds and removes, and the totals."""
    added, gone = list(added), list(gone)
    known = {} if parent is None or parent.summary is None else parent.summary.additional_properties
    sums: dict[str, tuple[int, int]] = {"total-files-size": (_size(added), _size(gone))}
    fields = {"added-files-size": _size(added), "removed-files-size": _size(gone)}
    for content, plus, minus, total in _COUNTS:
        counts = [sum(file.content == content for file in files) for files in (added, gone)]
        fields |= {plus: counts[0], minus: counts[1]}
        sums[total] = counts[0], counts[1]
    for content, plus, minus, total in _ROWS:
        counts = [
            sum(file.record_count for file in files if file.content == content) for files in (added, gone)
        ]
        fields |= {plus: counts[0], minus: counts[1]}
        sums[total] = counts[0], counts[1]
    texts = {name: str(count) for name, count in fields.items() if count}
    for total, (plus, minus) in sums.items():
        texts[total] = str(max(0, int(known.get(total, 0)) + plus - minus))
    texts["total-equality-deletes"] = known.get("total-equality-deletes", "0")
    only_adds = not gone and all(file.content == DataFileContent.DATA for file in added)
    operation = Operation.APPEND if only_adds else Operation.OVERWRITE
    return Summary(operation, **texts, **properties)


def _size(files: Iterable[ManifestedFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)
