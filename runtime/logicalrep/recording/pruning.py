"""Prune a recording: remove the segments at its beginning that no registered reader needs any more.

The new beginning is stored before files are removed. Readers ignore segments before it. After a crash in
between, the next `prune` removes the files. A recorder may write to the recording at the same time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec
import pyarrow as pa
from pyarrow import fs

from logicalrep._text import one_line
from logicalrep.errors import RecordingError
from logicalrep.recording.location import (
    BEGINNING_FILE,
    COPIES,
    SNAPSHOT,
    STATE_FILE,
    Beginning,
    Location,
    PathOrUri,
    last_acknowledged,
    packed_numbers,
)
from logicalrep.recording.recording import Recording
from logicalrep.recording.registered_readers import Reader, read_readers, reader_file
from logicalrep.recording.segment_file import segment_name
from logicalrep.recording.segment_format import Metadata, encode_json
from logicalrep.recording.small_files import remove_file, replace_file

_ATTEMPTS: Final = 3
"""Largest number of attempts to store a new beginning while readers register at the same time."""


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `prune`: which part of a recording was removed, and why the rest was kept."""

    first_segment: int
    """Number of the segment with which the recording begins now."""
    lsn: int
    """End LSN of the last pruned segment; 0 if no segment was ever pruned."""
    files: int
    """Number of removed files, which are segments and packs."""
    bytes: int
    """Total size of the removed files, in bytes."""
    kept: str
    """Text that says why the first segment was kept."""
    readers: tuple[Reader, ...]
    """The registered readers."""
    last_segment: int
    """Number of the last segment of the recording."""


class _File(msgspec.Struct, frozen=True):
    """A segment, or a pack (a file of several segments)."""

    location: Location
    first: int
    last: int
    bytes: int
    modified: float
    """Time of the last change, in seconds since 1970-01-01 00:00 UTC."""


def prune(
    recording: PathOrUri, *, keep: float, forget: Collection[str] = (), dry_run: bool = False
) -> Pruned:
    """Remove the segments at the beginning of a recording that no registered reader needs any more.

    A segment is kept if a registered reader has not read it, the recorder has not acknowledged it, its file
    was stored less than `keep` seconds ago, or a later segment has the end of one of its transactions. All
    segments after a kept one, and the last segment that each reader has read, are kept too. While the
    recorder copies tables, nothing is removed. Readers that have not registered do not count.

    Args:
        recording: The recording, as a path or URI. It must have been made by the recorder.
        keep: Age in seconds below which segments are kept.
        forget: IDs of readers whose registration is removed.
        dry_run: Whether to change nothing, and return what would be removed.

    Raises:
        RecordingError: The recording cannot be read or changed, was not made by the recorder, or a reader to
            be forgotten is not registered.
    """
    for _ in range(_ATTEMPTS):
        source = Recording(recording)
        folder = source.location
        if not (folder / STATE_FILE).is_file:
            raise RecordingError(
                f"{folder}: {STATE_FILE} is missing: only recordings of `logicalrep record` can be pruned"
            )
        readers = _without(folder, read_readers(folder), forget, dry_run=dry_run)
        forget = ()
        files = sorted(_stored_files(folder), key=lambda file: file.first)
        kept, beginning = _find_beginning(source, files, readers, keep)
        if not dry_run and not _store_beginning(folder, source.beginning, beginning):
            continue
        removed = [file for file in files if file.last < beginning.segment]
        for file in () if dry_run else removed:
            _remove(file.location)
        if not dry_run and folder.is_local:
            with suppress(OSError):  # the folder still has segments, or does not exist
                os.rmdir((folder / SNAPSHOT).path)
        return Pruned(
            first_segment=beginning.segment,
            lsn=beginning.lsn,
            files=len(removed),
            bytes=sum(file.bytes for file in removed),
            kept=kept,
            readers=tuple(readers),
            last_segment=source.numbers[-1],
        )
    raise RecordingError(f"{recording}: readers were registered during the pruning: run the command again")


def _without(
    folder: Location, readers: Sequence[Reader], forgotten: Collection[str], *, dry_run: bool
) -> list[Reader]:
    """Remove the registrations of the readers `forgotten`, unless `dry_run`; return the other readers."""
    known = {reader.id for reader in readers}
    for id_ in forgotten:
        if id_ not in known:
            names = f"the readers are {', '.join(sorted(known))}" if known else "no reader is registered"
            raise RecordingError(f"{folder}: reader {id_} is not registered: {names}")
        if not dry_run:
            _remove(reader_file(folder, id_))
    return [reader for reader in readers if reader.id not in forgotten]


def _find_beginning(
    source: Recording, files: Sequence[_File], readers: Sequence[Reader], keep: float
) -> tuple[str, Beginning]:
    """Find where a recording begins after pruning, and why its first segment is then kept.

    Args:
        source: The recording.
        files: Its segments and packs.
        readers: Its registered readers.
        keep: Age in seconds below which segments are kept.

    Returns:
        The reason, such as "it is too new (--keep)", and the beginning.
    """
    last, stored = source.numbers[-1], last_acknowledged(source.location)
    needed = [
        (reader.segment, f"reader {reader.id} needs it, for {reader.target} on {reader.host}")
        for reader in readers
    ]
    new = [file.first for file in files if file.modified > time.time() - keep]
    needed.append((min(new, default=last), "it is too new (--keep)"))
    needed.append((min(stored, last), "the recorder has acknowledged no later segment"))
    if (source.location / COPIES).is_folder:
        needed.append((0, "the recorder copies tables, which can need any segment"))
    first, kept = min(needed)
    now = source.beginning
    if first <= now.segment:
        return kept, now
    metadata = source.metadata(source.numbers)
    whole = _first_of_transactions(metadata, first)
    if whole < first:
        kept = "a transaction that begins in it ends later, or is prepared"
    if whole <= now.segment:
        return kept, now
    pruned = [one for one in metadata if one.number < whole]
    relations = {one.relation["oid"]: one for one in now.relations}
    relations |= {version.relation["oid"]: version for one in pruned for version in one.relations}
    text = datetime.now(UTC).isoformat(" ", "seconds")
    return kept, Beginning(whole, pruned[-1].end_lsn, text, tuple(relations.values()))


def _first_of_transactions(segments: Sequence[Metadata], first: int) -> int:
    """Return the highest segment number, at most `first`, before which pruning cuts no transaction in two.

    Each transaction that begins in an earlier segment also ends in an earlier segment.
    """
    last = segments[-1]
    ended = {end.begin for one in segments for end in one.ends}
    needed = {number for one in last.prepared for number in one.segments}
    needed |= {
        one.number
        for one in segments
        if one.session == last.session and any(part.begin not in ended for part in one.parts)
    }
    first = min([first, *needed])
    for one in reversed(segments):
        if one.number >= first:
            first = min([first, *(number for end in one.ends for number in end.segments)])
    return first


def _stored_files(folder: Location) -> Iterator[_File]:
    """Yield the segments and packs in the folder of a recording, and in the folder of its snapshot."""
    for parent in (folder / SNAPSHOT, folder):
        try:
            found = folder.filesystem.get_file_info(fs.FileSelector(parent.path, allow_not_found=True))
        except (OSError, pa.ArrowException) as error:
            raise RecordingError(f"{parent}: the folder cannot be listed: {one_line(error)}") from error
        for info in found:
            name = info.base_name
            numbers: Sequence[int] = packed_numbers(name)
            if name[:-8].isdecimal() and name == segment_name(int(name[:-8])):
                numbers = (int(name[:-8]),)
            if numbers:
                modified = info.mtime_ns / 1e9 if info.mtime_ns else time.time()
                yield _File(parent / name, numbers[0], numbers[-1], info.size or 0, modified)


def _store_beginning(folder: Location, old: Beginning, new: Beginning) -> bool:
    """Store the beginning `new` of a recording, unless a reader that needs earlier segments has registered.

    A reader registers before it reads the beginning. Therefore either this function sees the registration, or
    the reader sees the new beginning.

    Returns:
        Whether the new beginning is stored.
    """
    if new == old:
        return True
    _write(folder, new)
    if all(reader.segment >= new.segment for reader in read_readers(folder)):
        return True
    _write(folder, old)
    return False


def _write(folder: Location, beginning: Beginning) -> None:
    file = folder / BEGINNING_FILE
    try:
        replace_file(file, encode_json(beginning) + b"\n")
    except (OSError, pa.ArrowException) as error:
        raise RecordingError(f"{file}: the file cannot be written: {one_line(error)}") from error


def _remove(file: Location) -> None:
    try:
        remove_file(file)  # no error if missing: the recorder may have packed the segment
    except (OSError, pa.ArrowException) as error:
        raise RecordingError(f"{file}: the file cannot be removed: {one_line(error)}") from error
