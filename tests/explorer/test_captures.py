"""The protocol explorer reads every message of every capture exactly as `logicalrep inspect` does."""

from __future__ import annotations

import pytest

from logicalrep.capturefile import CaptureFile
from logicalrep.cli.look.inspection import _pieces
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.explorer.peer import ask, open_file


def _plain(value: object) -> object:
    """Return a value as `peer.js` writes it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return {"hex": value.encode("utf-8", "surrogateescape").hex()}
    return {"hex": value.hex()} if isinstance(value, bytes) else None


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_pieces_are_those_of_inspect(name: str) -> None:
    (answer,) = ask([open_file(corpus.path(name).read_bytes())])
    with CaptureFile(corpus.path(name)) as capture:
        for record, message in zip(capture.records(), answer["messages"], strict=True):
            expected = [
                [start + p.start, start + p.end, p.path, p.type, p.notation, _plain(p.value), p.doc]
                for start, p in _pieces(capture, record)
            ]
            assert message["pieces"] == expected, record.number
            assert message["problem"] is None, record.number
