"""Reasons why a Delta table may differ from its source, the server's table.

The replication stream does not contain what ALTER TABLE does to existing rows, and a recording may lack rows
of a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow.compute as pc

from pgoutput.replica.chunks import Chunk, Column
from pgoutput.replica.schema.layout import renamed_columns


class Difference(msgspec.Struct, frozen=True):
    """A reason why a Delta table may differ from its source, the server's table."""

    lsn: int
    """Commit LSN from which on the table may differ from its source."""
    reason: str
    """The reason as an English sentence, for example that a column was added."""


def encode_differences(differences: Sequence[Difference]) -> str:
    """Encode the reasons why a table may differ as JSON, for the table property `pgoutput.may_differ`."""
    return msgspec.json.encode(differences).decode()


def decode_differences(text: str | None) -> tuple[Difference, ...]:
    """Return the reasons stored in the table property `pgoutput.may_differ`; empty if `text` is None.

    Raises:
        ValueError: The text is not JSON written by `encode_differences`.
    """
    return msgspec.json.decode(text, type=tuple[Difference, ...]) if text else ()


def altered_columns(old: Sequence[Column] | None, new: Sequence[Column]) -> list[str]:
    """Return the schema changes that may have given existing rows values that the server never sent.

    PostgreSQL keeps the order of columns and appends new columns. So if a column has moved behind a column
    that came after it, the moved column was dropped and added again.

    Args:
        old: Previous columns of the relation; None if they are not known.
        new: Current columns of the relation.

    Returns:
        One English sentence for each altered column.
    """
    if old is None:
        return []
    reasons: list[str] = []
    old_index = {column.name: index for index, column in enumerate(old)}
    old_names = renamed_columns(old, new)
    highest = -1
    is_again = False
    for column in new:
        index = old_index.get(old_names.get(column.name, column.name))
        if index is None:
            reasons.append(f"column {column.name} was added, and may have a default value in existing rows")
            continue
        is_again = is_again or index < highest
        highest = index
        if is_again:
            reasons.append(f"column {column.name} was dropped and added again")
        elif _type(old[index]) != _type(column):
            reasons.append(f"column {column.name} changed its type, and USING may have changed its values")
    return reasons


def incomplete_reasons(chunk: Chunk) -> list[Difference]:
    """Return why the recording lacks rows of a relation, from the column `incomplete` of its changes."""
    changes = chunk.changes
    reasons: dict[str, int] = {}
    if changes["incomplete"].null_count < changes.num_rows:
        marked = changes.filter(pc.is_valid(changes["incomplete"]))
        for reason, lsn in zip(
            marked["incomplete"].to_pylist(), marked["commit_lsn"].to_pylist(), strict=True
        ):
            reasons.setdefault(reason, lsn)
    return [Difference(lsn, reason) for reason, lsn in reasons.items()]


def _type(column: Column) -> tuple[int, int]:
    return column.type_oid, column.type_modifier
