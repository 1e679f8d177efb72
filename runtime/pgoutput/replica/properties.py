"""What a Delta table's properties say of its relation."""

from __future__ import annotations

from deltalake import DeltaTable

from pgoutput.replica.chunks import Chunk
from pgoutput.replica.differences import (
    Difference,
    altered_columns,
    decode_differences,
    encode_differences,
    incomplete_reasons,
)
from pgoutput.replica.files import Files
from pgoutput.replica.folders import MAY_DIFFER, NAME, NAMESPACE
from pgoutput.replica.rows import Layout


def describe(table: DeltaTable, layout: Layout, chunk: Chunk) -> list[Difference]:
    """Keep a relation's name, and why its table may differ, in the table's properties.

    A commit is made only where they change, before the chunk's own: a crash loses no difference.

    Args:
        table: The table.
        layout: Its columns, before the chunk.
        chunk: The changes that are to be applied next.

    Returns:
        The differences that the properties did not have.
    """
    there = table.metadata().configuration
    known = decode_differences(there.get(MAY_DIFFER))
    reasons = {one.reason for one in known}
    new = [one for one in incomplete_reasons(chunk) if one.reason not in reasons]
    is_known = bool(layout.columns) or not layout.values
    altered = altered_columns(layout.columns if is_known else None, chunk.columns)
    if altered and not chunk.truncates and _has_rows(table, layout):
        difference = Difference(chunk.changes["commit_lsn"][0].as_py(), "; ".join(altered))
        new += [difference] if difference not in known else []
    properties = {NAMESPACE: chunk.namespace, NAME: chunk.name}
    if new:
        properties[MAY_DIFFER] = encode_differences([*known, *new])
    if properties.items() - there.items():
        table.alter.set_table_properties(properties, raise_if_not_exists=False)
        table.update_incremental()
    return new


def _has_rows(table: DeltaTable, layout: Layout) -> bool:
    """Whether the relation has rows, as far as its table tells."""
    files = Files(table, layout.schema)
    if layout.end is None:
        return any(batch.num_rows for file in files for batch in files.read(file, []))
    return any(batch[layout.end].null_count for file in files for batch in files.read(file, [layout.end]))
