"""Compare how Python and JavaScript decode messages: `peer.ts` answers for JavaScript in the same form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from logicalrep import envelope
from logicalrep.errors import DecodeError
from logicalrep.jsonlines import to_json
from logicalrep.messages import Message, Streaming
from logicalrep.versions import CODECS, Codec
from tests.javascript.peer import Peer

NAMES: dict[str, Codec] = {"envelope": envelope} | {f"v{version}": codec for version, codec in CODECS.items()}
"""The codecs, by their names in JavaScript."""

Input = tuple[str, bytes, bool, Streaming]
"""Name of a codec, and the arguments of its function `decode`."""


def expected(message: Message, data: bytes) -> dict[str, Any]:
    """Return the answer that `peer.ts` should give for bytes that decode to this message."""
    return {"message": to_json(message), "encoded": data.hex()}


def expected_error(error: DecodeError) -> dict[str, Any]:
    """Return the answer that `peer.ts` should give for bytes that are refused with this error."""
    return {
        "error": [type(error).__name__, javascript_text(str(error)), error.message, error.field, error.offset]
    }


def javascript_text(text: str) -> str:
    """Return the text of a Python error with the call `new StreamDecoder(…)` as in JavaScript."""
    python, javascript = (
        r"StreamDecoder\((\d), two_phase=True\)",
        r"new StreamDecoder(\1, { two_phase: true })",
    )
    return re.sub(python, javascript, text)


def compare(peer: Peer, inputs: Iterable[Input]) -> Counter[str]:
    """Decode the inputs in both languages; return how many were accepted and refused.

    Fails if the languages differ, or if an accepted message does not encode to its bytes.
    """
    inputs = list(inputs)
    answers = peer.ask_all(("decode", name, data.hex(), *context) for name, data, *context in inputs)
    outcomes: Counter[str] = Counter()
    for found, (name, data, in_stream, streaming) in zip(answers, inputs, strict=True):
        try:
            want = expected(NAMES[name].decode(data, in_stream, streaming), data)
        except DecodeError as error:
            want = expected_error(error)
        assert want == found, (name, data.hex(), in_stream, streaming)
        outcomes["refused" if "error" in want else "accepted"] += 1
    return outcomes
