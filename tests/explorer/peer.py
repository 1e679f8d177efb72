"""The protocol explorer's core, run by node without a browser."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.javascript.peer import NODE

PAGE: Final = Path(__file__).parents[2] / "generated/explorer/index.html"
SCRIPT: Final = Path(__file__).with_suffix(".js")


def ask(requests: Iterable[dict[str, Any]], *, errors: bool = False) -> list[Any]:
    """Return the result of each command (see `peer.js`); with `errors`, whole answers, also errors."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(
        [str(NODE), str(SCRIPT), str(PAGE)], input=lines, capture_output=True, text=True, check=True
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if errors:
        return answers
    assert all("result" in answer for answer in answers), [one for one in answers if "result" not in one][:3]
    return [answer["result"] for answer in answers]


def open_file(content: bytes, **settings: object) -> dict[str, object]:
    """Return the command that opens a file with the given content and settings of the page."""
    return {"command": "open", "content": base64.b64encode(content).decode(), **settings}
