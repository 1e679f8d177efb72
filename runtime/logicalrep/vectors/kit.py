"""Read kits: folders of test vectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from logicalrep.errors import RecordingError
from logicalrep.vectors.model import FORMAT, Manifest, Vector

MANIFEST: Final = "manifest.json"
"""Name of the file that lists the other files of a kit."""


def read_kit(folder: str | Path) -> Iterator[Vector]:
    """Yield the vectors of a kit.

    Raises:
        RecordingError: The folder contains no kit or a kit of another format, or a file cannot be read.
    """
    path = Path(folder, MANIFEST)
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        if manifest.format != FORMAT:
            raise RecordingError(
                f"{path}: expected format {FORMAT} of the kit, found format {manifest.format}: "
                "write the kit again with `logicalrep vectors`"
            )
        for one in manifest.files:
            path = Path(folder, one.path)
            for line in path.read_bytes().splitlines():
                yield msgspec.json.decode(line, type=Vector)
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordingError(f"{path}: not a kit of test vectors of `logicalrep vectors`: {error}") from None
