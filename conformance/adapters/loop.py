"""Answer requests of `logicalrep vectors run` with a decoder in Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

Request = dict[str, Any]
"""A line of standard input: `id`, `version`, `options` and `messages`, in hex."""

Decode = Callable[[bytes], dict[str, Any]]
"""Decodes one message of a stream and returns it as JSON; raises any exception to refuse it."""


def serve(new_decoder: Callable[[Request], Decode], claims: Callable[[Request], str | None]) -> None:
    """Answer each line of standard input.

    Args:
        new_decoder: Returns a decoder without state, for the messages of a request.
        claims: Returns the reason why the decoder does not claim to decode a request, or None.
    """
    serve_streams(lambda request: _decoded(new_decoder(request), request["messages"]), claims)


def serve_streams(
    decoded: Callable[[Request], dict[str, Any]], claims: Callable[[Request], str | None]
) -> None:
    """Answer each line of standard input with a decoder that takes all messages of a request at once.

    Args:
        decoded: Returns the keys of the answer to a request.
        claims: Returns the reason why the decoder does not claim to decode a request, or None.
    """
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {"id": request["id"]}
        if reason := claims(request):
            answer["skip"] = reason
        else:
            answer |= decoded(request)
        print(json.dumps(answer), flush=True)


def version_1_text(request: Request, *, messages: bool = False) -> str | None:
    """Refuse everything except version 1 in text format, with logical messages only if `messages`."""
    if request["version"] != 1:
        return f"version {request['version']}"
    refused = ("two_phase", "binary") if messages else ("two_phase", "binary", "messages")
    return next((name for name in refused if request["options"][name]), None)


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
