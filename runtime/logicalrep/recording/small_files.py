"""Replace and remove small files in the folder of a recording, locally or in an object store."""

from __future__ import annotations

from contextlib import suppress

from logicalrep.recording.directory import Directory
from logicalrep.recording.location import Location
from logicalrep.recording.object_store import ObjectStore, parse_store_url


def replace_file(file: Location, content: bytes) -> None:
    """Create or replace a small file atomically: a reader finds the old content or the new content.

    Raises:
        OSError: The file cannot be written.
        RecordingError: The object store refuses the file.
        StoreUnavailable: The object store does not answer.
        MissingExtraError: The file is in an object store, and the package obstore is not installed.
    """
    folder, name = file.parent, file.path.rpartition("/")[2]
    if file.is_local:
        with Directory(folder.path) as directory:
            try:
                directory.replace(name, content)
            except FileNotFoundError:  # a recorder that started meanwhile has removed the unfinished file
                directory.replace(name, content)
    elif parse_store_url(folder.place) is not None:
        ObjectStore(folder.place).put(name, content)
    else:
        file.filesystem.create_dir(folder.path)
        with file.filesystem.open_output_stream(file.path) as stream:
            stream.write(content)


def remove_file(file: Location) -> None:
    """Remove a file; a missing file is no error.

    Raises:
        OSError: The file cannot be removed.
    """
    with suppress(FileNotFoundError):
        file.filesystem.delete_file(file.path)
