"""Read, write and remove small text files of a target, on any filesystem."""

from __future__ import annotations

import os
from contextlib import suppress
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from pgoutput._text import one_line
from pgoutput.errors import ReplicaError
from pgoutput.recording import Location


def read_file(place: Location) -> str:
    """Return the text of a small text file; an empty string if the file does not exist.

    Raises:
        ReplicaError: The file cannot be read.
    """
    try:
        if place.filesystem.get_file_info(place.path).type == fs.FileType.NotFound:
            return ""
        with place.filesystem.open_input_stream(place.path) as stream:
            return bytes(stream.read()).decode()
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise ReplicaError(f"{place}: {one_line(error)}") from error


def write_file(place: Location, text: str) -> None:
    """Write a small text file atomically: a reader never finds a part of the text.

    Raises:
        ReplicaError: The file cannot be written.
    """
    try:
        place.filesystem.create_dir(place.path.rpartition("/")[0])
        if place.is_local:
            part = f"{place.path}.part"
            _write(place.filesystem, part, text)
            place.filesystem.move(part, place.path)
        else:  # object stores show a file when it is complete
            _write(place.filesystem, place.path, text)
    except (OSError, pa.ArrowException) as error:
        raise ReplicaError(f"{place}: {one_line(error)}") from error


def create_file(place: Location, text: str) -> None:
    """Write a small text file that must not exist yet, atomically.

    If two processes create a file of the local filesystem at the same time, one of them fails.

    Raises:
        ReplicaError: The file exists, or cannot be written.
    """
    taken = ReplicaError(
        f"{place}: another process has written this file: only one query may write to a target"
    )
    if read_file(place):
        raise taken
    if not place.is_local:
        write_file(place, text)
        return
    part = place.parent / f".{uuid4()}.part"
    write_file(part, text)
    try:
        os.link(part.path, place.path)
    except FileExistsError:
        raise taken from None
    except OSError as error:
        raise ReplicaError(f"{place}: {one_line(error)}") from error
    finally:
        remove_file(part)


def remove_file(place: Location, *, missing_ok: bool = False) -> None:
    """Remove a small text file.

    Args:
        place: The file.
        missing_ok: Whether to do nothing if the file does not exist.

    Raises:
        ReplicaError: The file cannot be removed.
    """
    try:
        place.filesystem.delete_file(place.path)
    except FileNotFoundError as error:
        if not missing_ok:
            raise ReplicaError(f"{place}: {one_line(error)}") from error
    except (OSError, pa.ArrowException) as error:
        raise ReplicaError(f"{place}: {one_line(error)}") from error


def remove_empty_folder(place: Location) -> None:
    """Remove a folder of the local filesystem if it is empty; do nothing on other filesystems."""
    if place.is_local:
        with suppress(OSError):  # another process has written into the folder
            os.rmdir(place.path)


def _write(filesystem: fs.FileSystem, path: str, text: str) -> None:
    with filesystem.open_output_stream(path) as stream:
        stream.write(text.encode())
