"""The protocol explorer reads every message of every capture exactly as `pgoutput inspect` does."""

from __future__ import annotations

from typing import Final

from pgoutput.capturefile import CaptureFile
from pgoutput.cli.look.inspection import _pieces
from tests import truth
from tests.explorer.peer import ask, open_file

CAPTURES: Final = sorted(truth.CAPTURES.glob("*.gz"))


def _plain(value: object) -> object:
    """Return a value as `peer.js` writes it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return {"hex": value.encode("utf-8", "surrogateescape").hex()}
    return {"hex": value.hex()} if isinstance(value, bytes) else None


def test_pieces_are_those_of_inspect() -> None:
    answers = ask(open_file(path.read_bytes()) for path in CAPTURES)
    for path, answer in zip(CAPTURES, answers, strict=True):
        with CaptureFile(path) as capture:
            for record, message in zip(capture.records(), answer["messages"], strict=True):
                expected = [
                    [start + p.start, start + p.end, p.path, p.type, p.notation, _plain(p.value), p.doc]
                    for start, p in _pieces(capture, record)
                ]
                assert message["pieces"] == expected, f"{path.name}:{record.number}"
                assert message["problem"] is None, f"{path.name}:{record.number}"
