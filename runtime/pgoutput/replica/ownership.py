"""Ownership of a target: only one streaming query may write to it, with changes of one recording."""

from __future__ import annotations

from typing import Final

import msgspec

from pgoutput.errors import ReplicaError
from pgoutput.recording import PathOrUri, locate
from pgoutput.replica.small_files import read_file, write_file

_OWNER_FILE: Final = "_owner.json"


class Owner(msgspec.Struct, frozen=True):
    """The owner of a target, stored in the target's `_owner.json`: a streaming query and a recording."""

    query: str
    """Spark's ID of the streaming query, which stays the same when the query restarts from its checkpoint."""
    output: str
    """What the query writes: "tables", "history" (tables with all versions of rows) or "a feed" (Parquet)."""
    recording: str
    """UUID of the recording; empty if the changes do not come from a recording."""


def claim_target(target: PathOrUri, owner: Owner, *, batch: int) -> None:
    """Make `owner` the owner of a target that has none; refuse a target that has another owner.

    Args:
        target: The folder, as a path or URI.
        owner: The query that is about to write, and its recording.
        batch: Number of the micro-batch that the query is about to write.

    Raises:
        ReplicaError: The folder contains something other than a target, the target has another owner, or the
            target has no owner although the query has already written micro-batches.
    """
    folder = locate(target)
    stored = check_owner(target, owner.output, owner.recording)
    if stored is None and batch:
        raise ReplicaError(
            f"{folder}: the target is empty, but by its checkpoint the query has written {batch} batches. "
            "Put the target back, or begin anew with a new target and a new checkpoint"
        )
    if stored is None:
        write_file(folder / _OWNER_FILE, msgspec.json.encode(owner).decode())
    elif stored.query != owner.query:
        raise ReplicaError(
            f"{folder}: the target belongs to query {stored.query}, and this is query {owner.query}. "
            "A query whose checkpoint is lost cannot be resumed: begin anew, with an empty target"
        )


def check_owner(target: PathOrUri, output: str, recording: str) -> Owner | None:
    """Check that a target has this output and recording; return its owner, or None if the target is empty.

    Args:
        target: The folder, as a path or URI.
        output: What a query is going to write to the target: "tables", "history" or "a feed".
        recording: UUID of the recording that the changes come from; empty if it is not known yet.

    Raises:
        ReplicaError: The folder contains something other than a target, or the target has another kind of
            output or belongs to another recording.
    """
    folder = locate(target)
    owner = read_owner(target)
    if owner is None:
        others = sorted(name for name in folder.names() if not name.startswith(("_", ".")))
        if others:
            raise ReplicaError(f"{folder}: the target has no owner and is not empty: it contains {others[0]}")
        return None
    if owner.output != output:
        raise ReplicaError(f"{folder}: the target holds {owner.output}. Write {output} to another target")
    if recording and owner.recording != recording:
        raise ReplicaError(
            f"{folder}: the target belongs to recording {owner.recording or 'without a UUID'}, and this is "
            f"recording {recording}. Replicate that one, or begin anew with a new target and a new checkpoint"
        )
    return owner


def read_owner(target: PathOrUri) -> Owner | None:
    """Return the owner that is stored in a target, or None if no owner is stored.

    Raises:
        ReplicaError: The target's file `_owner.json` cannot be read.
    """
    file = locate(target) / _OWNER_FILE
    text = read_file(file)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Owner)
    except msgspec.DecodeError as error:
        raise ReplicaError(f"{file}: {error}. Begin anew, with an empty target") from error
