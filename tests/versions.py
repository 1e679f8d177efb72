"""The protocol versions of the spec: no test lists them, so that the tests pass with other specs."""

from __future__ import annotations

import atexit
import gzip
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from logicalrep.versions import CODECS, LATEST_RELEASED

OLDEST: Final = min(CODECS)
NEWEST: Final = max(CODECS)
UNKNOWN: Final = NEWEST + 1
"""A protocol version that the spec does not have."""
KNOWN: Final = ", ".join(map(str, CODECS))
"""The protocol versions of the spec, as error texts list them."""
RELEASED: Final = tuple(version for version in CODECS if version <= LATEST_RELEASED)
PLAIN: Final[Any] = CODECS[OLDEST]
"""A codec for messages outside stream blocks; all protocol versions encode these in the same way."""


def needs_version(version: int) -> pytest.MarkDecorator:
    """Return the pytest mark for tests of a protocol version: skip them if the spec no longer has it."""
    return pytest.mark.skipif(version < OLDEST, reason=f"the spec has no protocol version {version}")


def _header(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        header: dict[str, Any] = json.loads(file.readline())
    return header


_FOLDER: Final = Path(__file__).parent / "captures"
_HEADERS: Final = {path: _header(path) for path in _FOLDER.glob("*.jsonl.gz")}


def _captures() -> Path:
    """Return a folder of captures that the versions of the spec can read.

    Outside stream blocks, all versions encode a message in the same way. So a capture of a version that the
    spec no longer has is a capture of the oldest version that it has.
    """
    if all(header["proto_version"] in CODECS for header in _HEADERS.values()):
        return _FOLDER
    copies = Path(tempfile.mkdtemp(prefix="captures-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    (copies / "truth").symlink_to(_FOLDER / "truth")
    for path, header in _HEADERS.items():
        if header["proto_version"] in CODECS:
            (copies / path.name).symlink_to(path)
        else:
            lines = gzip.decompress(path.read_bytes()).partition(b"\n")[2]
            first = json.dumps(header | {"proto_version": OLDEST}).encode()
            (copies / path.name).write_bytes(gzip.compress(first + b"\n" + lines))
    return copies


CAPTURES: Final = _captures()
CAPTURED: Final = tuple(sorted({one["proto_version"] for one in _HEADERS.values()} & CODECS.keys()))
"""The protocol versions of which there are captures, and whose messages tests write by hand."""
WRITTEN: Final = CAPTURED[-1]
"""The newest protocol version of which tests write messages by hand; a later one can require other fields."""
WRITTEN_CODEC: Final[Any] = CODECS[WRITTEN]
