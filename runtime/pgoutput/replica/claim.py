"""Whose a target is: one query's, which knows what of its batches is in the tables."""

from __future__ import annotations

from typing import Final

import msgspec

from pgoutput.errors import CaptureError
from pgoutput.replica.folders import read_file, write_file
from pgoutput.segments.location import Place, locate

_CLAIM: Final = "_query.json"


class _Claim(msgspec.Struct):
    query: str
    keeps: str


def claim(target: Place, query: str, keeps: str) -> None:
    """See that a target is a query's; make it so if it is free.

    Args:
        target: The folder, as a path or URI.
        query: The query's id, which stays the same for as long as its checkpoint does.
        keeps: What the query makes of changes: tables, their history, or a feed.

    Raises:
        CaptureError: As `owner`, or the target is another query's.
    """
    there = owner(target, keeps)
    if there is None:
        write_file(locate(target) / _CLAIM, msgspec.json.encode(_Claim(query, keeps)).decode())
    elif there != query:
        raise CaptureError(
            f"{locate(target)}: the query {there} writes here, and this is {query}. "
            "One whose checkpoint is gone cannot go on: begin anew, with an empty target"
        )


def owner(target: Place, keeps: str) -> str | None:
    """The id of the query that a target belongs to; None if it is free.

    Args:
        target: The folder, as a path or URI.
        keeps: What is to be made of changes there.

    Raises:
        CaptureError: The target holds something else.
    """
    folder = locate(target)
    file = folder / _CLAIM
    text = read_file(file)
    if not text:
        others = sorted(name for name in folder.names() if not name.startswith(("_", ".")))
        if others:
            raise CaptureError(f"{folder}: a new target is empty, but here is {others[0]}")
        return None
    try:
        there = msgspec.json.decode(text, type=_Claim)
    except msgspec.DecodeError as error:
        raise CaptureError(f"{file}: {error}") from None
    if there.keeps != keeps:
        raise CaptureError(f"{folder}: the query keeps {there.keeps} here, and cannot keep {keeps}")
    return there.query
