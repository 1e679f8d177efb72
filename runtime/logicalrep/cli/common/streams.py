"""The streams that a command reads: capture files and recordings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from logicalrep._stored_stream import StoredStream
from logicalrep.capturefile import CaptureFile
from logicalrep.cli.common.printing import complain
from logicalrep.errors import RecordingError

if TYPE_CHECKING:
    from logicalrep.recording import RecordingReader


@contextmanager
def opened(path: str, skip_bad: bool) -> Iterator[StoredStream]:
    """Open a capture file, segment or recording; with `skip_bad`, print skipped messages and their number."""
    skipped = 0

    def skip(error: RecordingError) -> None:
        nonlocal skipped
        skipped += 1
        complain(f"skipped: {error}")

    path = "/dev/stdin" if path == "-" else path
    with _reader(path)(path, on_error=skip if skip_bad else None) as stream:
        yield stream
    if skipped:
        complain(f"{path}: {skipped} skipped")


def _reader(path: str) -> type[CaptureFile] | type[RecordingReader]:
    """Return the class that reads the file or folder at a path or URL; import pyarrow only if needed."""
    if not (Path(path).is_dir() or path.endswith(".parquet") or "://" in path):
        return CaptureFile
    from logicalrep.recording import RecordingReader

    return RecordingReader
