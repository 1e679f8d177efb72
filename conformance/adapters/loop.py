"""Answer requests of `pgoutput vectors run` with a decoder in Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

Decode = Callable[[bytes], dict[str, Any]]
"""Decodes one message of a stream and returns it as JSON; raises any exception to refuse it."""


def serve(new_decoder: Callable[[], Decode], claims: Callable[[dict[str, Any]], str | None]) -> None:
    """Answer each line of standard input.

    Args:
        new_decoder: Returns a decoder without state, for the messages of one request.
        claims: Returns the reason why the decoder does not claim to decode a request, or None.
    """
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {"id": request["id"]}
        if reason := claims(request):
            answer["skip"] = reason
        else:
            answer |= _decoded(new_decoder(), request["messages"])
        print(json.dumps(answer), flush=True)


def version_1_text(request: dict[str, Any]) -> str | None:
    """Refuse everything except protocol version 1 with values in text format."""
    if request["version"] != 1:
        return f"version {request['version']}"
    return next((name for name in ("two_phase", "binary", "messages") if request["options"][name]), None)


def lsn(value: int) -> str:
    """Return an LSN as PostgreSQL writes it."""
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"


def time(value: datetime) -> str:
    """Return a time as the vectors write it."""
    return value.isoformat()


def _decoded(decode: Decode, messages: list[str]) -> dict[str, Any]:
    done: list[dict[str, Any]] = []
    for message in messages:
        try:
            done.append(decode(bytes.fromhex(message)))
        except MemoryError:
            raise
        except Exception as error:
            return {"messages": done, "error": {"text": f"{type(error).__name__}: {error}"}}
    return {"messages": done}
