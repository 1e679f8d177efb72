"""Why a Delta table may differ from its source.

The stream does not have what ALTER TABLE does to existing rows, and a recording can lack rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow.compute as pc

from pgoutput.replica.chunks import Chunk, Column
from pgoutput.replica.rows import renamed_columns


class Difference(msgspec.Struct, frozen=True):
    """A reason why a table may differ from its source."""

    lsn: int
    """commit_lsn of the first change that shows it."""
    reason: str


def encode_differences(differences: Sequence[Difference]) -> str:
    """Return the JSON that a table's property has."""
    return msgspec.json.encode(differences).decode()


def decode_differences(text: str | None) -> tuple[Difference, ...]:
    """Return the differences that a table's property tells; none if there is no such property.

    Raises:
        ValueError: The text is not such JSON.
    """
    return msgspec.json.decode(text, type=tuple[Difference, ...]) if text else ()


def altered_columns(old: Sequence[Column] | None, new: Sequence[Column]) -> list[str]:
    """Return what happened to columns so that existing rows may have values that were not sent.

    PostgreSQL keeps the order of columns, and puts a new one last: a column that others have overtaken was
    dropped and added again.

    Args:
        old: The columns that the relation had; None if they are not known.
        new: The columns that it has.
    """
    if old is None:
        return []
    reasons: list[str] = []
    places = {column.name: place for place, column in enumerate(old)}
    names = renamed_columns(old, new)
    reached = -1
    again = False
    for column in new:
        place = places.get(names.get(column.name, column.name))
        if place is None:
            reasons.append(f"column {column.name} was added, and may have a default value in existing rows")
            continue
        again = again or place < reached
        reached = place
        if again:
            reasons.append(f"column {column.name} was dropped and added again")
        elif _type(old[place]) != _type(column):
            reasons.append(f"column {column.name} changed its type, and USING may have changed its values")
    return reasons


def incomplete_reasons(chunk: Chunk) -> list[Difference]:
    """Return why the recording lacks rows of the relation, by the changes of a chunk."""
    changes = chunk.changes
    reasons: dict[str, int] = {}
    if changes["incomplete"].null_count < changes.num_rows:
        there = changes.filter(pc.is_valid(changes["incomplete"]))
        for reason, lsn in zip(there["incomplete"].to_pylist(), there["commit_lsn"].to_pylist(), strict=True):
            reasons.setdefault(reason, lsn)
    return [Difference(lsn, reason) for reason, lsn in reasons.items()]


def _type(column: Column) -> tuple[int, int]:
    return column.type_oid, column.type_modifier
