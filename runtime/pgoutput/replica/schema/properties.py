"""Properties of a Delta table: the relation's name, and why the table may differ from its source."""

from __future__ import annotations

from deltalake import DeltaTable

from pgoutput.replica.chunks import Chunk
from pgoutput.replica.data_files import DataFiles
from pgoutput.replica.registry import MAY_DIFFER, NAME, NAMESPACE
from pgoutput.replica.schema.differences import (
    Difference,
    altered_columns,
    decode_differences,
    encode_differences,
    incomplete_reasons,
)
from pgoutput.replica.schema.layout import TableLayout


def update_properties(table: DeltaTable, layout: TableLayout, chunk: Chunk) -> list[Difference]:
    """Store the relation's name, and reasons why the table may differ from its source, in table properties.

    The properties are committed before the changes, so a crash loses no reason, and only if they differ from
    the stored properties.

    Args:
        table: The table.
        layout: The layout of the table, before the chunk is applied.
        chunk: The changes that are about to be applied.

    Returns:
        The reasons that the properties did not contain before.
    """
    stored = table.metadata().configuration
    known = decode_differences(stored.get(MAY_DIFFER))
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
    if properties.items() - stored.items():
        table.alter.set_table_properties(properties, raise_if_not_exists=False)
        table.update_incremental()
    return new


def _has_rows(table: DeltaTable, layout: TableLayout) -> bool:
    """Return whether the Delta table has current rows; with history, rows whose `__END_AT` is NULL."""
    files = DataFiles(table, layout.schema)
    if layout.end is None:
        return any(batch.num_rows for file in files for batch in files.read(file, []))
    return any(batch[layout.end].null_count for file in files for batch in files.read(file, [layout.end]))
