"""The owner of a target: one query and one recording."""

from __future__ import annotations

from typing import Final

import msgspec

from pgoutput.errors import ReplicaError
from pgoutput.recording import PathOrUri, locate
from pgoutput.replica.storage import read_file, write_file

_CLAIM: Final = "_query.json"


class Claim(msgspec.Struct, frozen=True):
    """What a target's owner noted in it."""

    query: str
    """Spark's id of the query, which stays the same for as long as its checkpoint does."""
    keeps: str
    """What the query makes of changes: tables, their history, or a feed."""
    recording: str
    """UUID of the recording; empty where the changes come from no recording."""


def claim(target: PathOrUri, mine: Claim, *, batch: int) -> None:
    """Note the owner in a target that has none; check it in any other.

    Args:
        target: The folder, as a path or URI.
        mine: The query that is about to write.
        batch: Number of the batch that it is about to write.

    Raises:
        ReplicaError: As `check_owner`; the target belongs to another query; or it has no owner although
            batches were written before.
    """
    folder = locate(target)
    there = check_owner(target, mine.keeps, mine.recording)
    if there is None and batch:
        raise ReplicaError(
            f"{folder}: the target is empty, but by its checkpoint the query has written {batch} batches. "
            "Put the target back, or begin anew with a new target and a new checkpoint"
        )
    if there is None:
        write_file(folder / _CLAIM, msgspec.json.encode(mine).decode())
    elif there.query != mine.query:
        raise ReplicaError(
            f"{folder}: the query {there.query} writes here, and this is {mine.query}. "
            "One whose checkpoint is gone cannot go on: begin anew, with an empty target"
        )


def check_owner(target: PathOrUri, keeps: str, recording: str) -> Claim | None:
    """Return the owner of a target; None if it has none.

    Args:
        target: The folder, as a path or URI.
        keeps: What is to be made of changes there.
        recording: UUID of the recording that they come from; empty if it is not known yet.

    Raises:
        ReplicaError: The target holds something else, or belongs to another recording.
    """
    folder = locate(target)
    there = read_claim(target)
    if there is None:
        others = sorted(name for name in folder.names() if not name.startswith(("_", ".")))
        if others:
            raise ReplicaError(f"{folder}: a new target is empty, but here is {others[0]}")
        return None
    if there.keeps != keeps:
        raise ReplicaError(f"{folder}: the query keeps {there.keeps} here, and cannot keep {keeps}")
    if recording and there.recording != recording:
        raise ReplicaError(
            f"{folder}: the target belongs to recording {there.recording or 'without a UUID'}, and this is "
            f"recording {recording}. Replicate that one, or begin anew with a new target and a new checkpoint"
        )
    return there


def read_claim(target: PathOrUri) -> Claim | None:
    """Return what a target's owner noted in it; None if it has none.

    Raises:
        ReplicaError: It cannot be read.
    """
    file = locate(target) / _CLAIM
    text = read_file(file)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Claim)
    except msgspec.DecodeError as error:
        raise ReplicaError(f"{file}: {error}. Begin anew, with an empty target") from error
