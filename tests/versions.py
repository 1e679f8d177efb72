"""The protocol versions of the spec: no test lists them, so that the tests pass with other specs.

A name such as `v1` is the codec of a version. If the spec no longer has it, tests that use it are skipped.
"""

from __future__ import annotations

import atexit
import gzip
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from pgoutput.versions import CODECS, LATEST_RELEASED

OLDEST: Final = min(CODECS)
NEWEST: Final = max(CODECS)
UNKNOWN: Final = NEWEST + 1
"""A version that the spec does not have."""
KNOWN: Final = ", ".join(map(str, CODECS))
"""The versions, as error texts list them."""
RELEASED: Final = tuple(version for version in CODECS if version <= LATEST_RELEASED)
PLAIN: Final[Any] = CODECS[OLDEST]
"""A codec for messages outside stream blocks, which all versions encode in the same way."""


class _Removed:
    """The codec of a version that the spec no longer has."""

    def __init__(self, version: int) -> None:
        self._version = version

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._skip

    def _skip(self, *_: object) -> NoReturn:
        pytest.skip(f"the spec has no protocol version {self._version}")


def __getattr__(name: str) -> Any:
    if match := re.fullmatch(r"v(\d+)", name):
        return CODECS.get(int(match[1])) or _Removed(int(match[1]))
    raise AttributeError(name)


@contextmanager
def skip_removed() -> Iterator[None]:
    """Skip a test that asks for a version older than those of the spec."""
    try:
        yield
    except Exception as error:
        match = re.search(r"no protocol version (\d+)", str(error))
        if match is None or int(match[1]) >= OLDEST:
            raise
        pytest.skip(str(error))


def captures(folder: Path) -> Path:
    """Return a folder of captures that the versions of the spec can read.

    Outside stream blocks, all versions encode a message in the same way. So a capture of a version that the
    spec no longer has is a capture of the oldest version that it has.
    """
    headers = {path: _header(path) for path in folder.glob("*.jsonl.gz")}
    if all(header["proto_version"] in CODECS for header in headers.values()):
        return folder
    copies = Path(tempfile.mkdtemp(prefix="captures-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    (copies / "truth").symlink_to(folder / "truth")
    for path, header in headers.items():
        if header["proto_version"] in CODECS:
            (copies / path.name).symlink_to(path)
        else:
            lines = gzip.decompress(path.read_bytes()).partition(b"\n")[2]
            first = json.dumps(header | {"proto_version": OLDEST}).encode()
            (copies / path.name).write_bytes(gzip.compress(first + b"\n" + lines))
    return copies


def _header(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        header: dict[str, Any] = json.loads(file.readline())
    return header
