"""Decoders for tests of `logicalrep vectors run`: right, wrong, slow, and broken ones.

`python -m tests.vectors.decoders NAME` answers requests as the function NAME does.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from logicalrep.vectors import Request, answer
from tests.versions import OLDEST


def right(request: Request) -> Any:
    return answer(request)


def silent(request: Request) -> Any:
    """Answer only whether the messages are legal, and leave out all else."""
    done = answer(request)
    if done.error is not None:
        return {"id": request.id, "error": {}}
    return {"id": request.id, "messages": [{} for _ in request.messages]}


def tags(request: Request) -> Any:
    done = answer(request)
    decoded = [{"type": one["type"]} for one in done.messages or ()]
    return {"id": request.id, "messages": decoded} | ({"error": {}} if done.error is not None else {})


def unsure(request: Request) -> Any:
    """Answer correctly, but leave out the values of rows."""
    done = answer(request)
    for one in done.messages or ():
        one |= {name: [{} for _ in one[name]] for name in ("new", "old", "key") if one.get(name)}
    return done


def credulous(request: Request) -> Any:
    """Accept every message as legal."""
    return {"id": request.id, "messages": [{} for _ in request.messages]}


def wrong_xid(request: Request) -> Any:
    done = answer(request)
    for one in done.messages or ():
        if one.get("xid", 0) >= 1 << 31:
            one["xid"] -= 1 << 32
    return done


def off_by_one(request: Request) -> Any:
    """Report an error at the byte after the one that has the fault."""
    done = answer(request)
    if done.error is not None:
        done.error["offset"] += 1
    return done


def loses_a_row(request: Request) -> Any:
    done = answer(request)
    for rows in (done.tables or {}).values():
        del rows[:1]
    return done


def hangs(request: Request) -> Any:
    """Never answer requests for an Update."""
    while "/Update/" in request.id:
        time.sleep(1)
    return answer(request)


def drips(request: Request) -> Any:
    """Write byte after byte, slowly and endlessly, for an Update."""
    while "/Update/" in request.id:
        os.write(1, b" ")
        time.sleep(0.01)
    return answer(request)


def floods(request: Request) -> Any:
    """Write endlessly, without a line end, for an Update."""
    while "/Update/" in request.id:
        os.write(1, b"x" * 65536)
    return answer(request)


def ends(request: Request) -> Any:
    if "/Update/" in request.id:
        os._exit(7)
    return answer(request)


def aborts(request: Request) -> Any:
    if "/Update/" in request.id:
        os.abort()
    return answer(request)


def babbles(request: Request) -> Any:
    return "no answer" if "/Update/" in request.id else answer(request)


def misnames(request: Request) -> Any:
    """Answer an Update with the id of another request."""
    return {"id": "other", "messages": []} if "/Update/" in request.id else answer(request)


def grows(request: Request) -> Any:
    """Allocate 256 MiB for an Update, then answer correctly."""
    held = bytes(256 << 20) if "/Update/" in request.id else b""
    assert held is not None
    return answer(request)


def waits(request: Request) -> Any:
    """Write the process ID to the file that DECODER_PID names, then never answer."""
    Path(os.environ["DECODER_PID"]).write_text(f"{os.getpid()}\n")
    time.sleep(3600)


def dumb(request: Request) -> Any:
    os._exit(3)


def oldest(request: Request) -> Any:
    if request.version != OLDEST:
        return {"id": request.id, "skip": f"version {request.version}"}
    return answer(request)


if __name__ == "__main__":
    decode = globals()[sys.argv[1]]
    for line in sys.stdin.buffer:
        os.write(1, msgspec.json.encode(decode(msgspec.json.decode(line, type=Request))) + b"\n")
