"""Read, write and remove small text files of a target, on any filesystem."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from logicalrep import recording
from logicalrep._text import one_line
from logicalrep.errors import RecordingError, ReplicaError
from logicalrep.recording import (
    Location,
    ObjectStore,
    StoreUnavailable,
    parse_store_url,
    replace_file,
    sync_path,
)
from logicalrep.targets.protocol import ConflictError


def read_file(place: Location) -> str:
    """Return the text of a small text file; an empty string if the file does not exist.

    Raises:
        ReplicaError: The file cannot be read.
    """
    try:
        return (place.content() or b"").decode()
    except UnicodeDecodeError as error:
        raise ReplicaError(
            f"{place}: the file is damaged ({one_line(error)}). Restore it from a copy"
        ) from error
    except RecordingError as error:
        raise ReplicaError(str(error)) from error


def write_file(place: Location, text: str) -> None:
    """Write a small text file atomically: a reader never finds a part of the text.

    Raises:
        ReplicaError: The file cannot be written.
        MissingExtraError: The file is in an object store, and the package obstore is not installed.
    """
    with _replica_errors(place):
        if not place.is_local:
            replace_file(place, text.encode())
            return
        part = Path(f"{place.path}.{uuid4()}.part")  # another process may write the file too
        _write_part(part, text)
        part.rename(place.path)
        sync_path(part.parent)


def create_file(place: Location, text: str) -> None:
    """Write a small text file that must not exist yet, atomically.

    If several processes create a file at the same time, one of them succeeds.

    Raises:
        ConflictError: The file exists.
        ReplicaError: The file cannot be written, or its place is neither local nor in an object store.
        MissingExtraError: The file is in an object store, and the package obstore is not installed.
    """
    folder, name = place.parent, place.path.rpartition("/")[2]
    try:
        with _replica_errors(place, FileExistsError):
            if place.is_local:
                _create_local(Path(place.path), text)
            elif parse_store_url(folder.place) is not None:
                ObjectStore(folder.place).create(name, text.encode())
            else:
                raise ReplicaError(f"{place}: a target must be a local folder, or an s3, gs or az URL")
    except FileExistsError:
        raise ConflictError(
            f"{place}: another process has created this file at the same time, and this process has written "
            "nothing. Repeat the command"
        ) from None


def _write_part(part: Path, text: str) -> None:
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(text.encode())
    sync_path(part)


def _create_local(path: Path, text: str) -> None:
    part = path.with_name(f".{uuid4()}.part")
    try:
        _write_part(part, text)
        os.link(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync_path(path.parent)


def remove_file(place: Location) -> None:
    """Remove a small text file; a missing file is no error.

    Raises:
        ReplicaError: The file cannot be removed.
    """
    with _replica_errors(place):
        recording.remove_file(place)


@contextmanager
def _replica_errors(place: Location, *expected: type[Exception]) -> Iterator[None]:
    """Raise errors of filesystems and stores in a `with` block as `ReplicaError`, except `expected` ones."""
    try:
        yield
    except expected:
        raise
    except (OSError, pa.ArrowException, RecordingError, StoreUnavailable) as error:
        raise ReplicaError(f"{place}: the file cannot be written or removed: {one_line(error)}") from error
