"""Schema evolution: alter a Delta table, or rewrite its files, when the columns of its relation change."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from logicalrep.apply.chunks import Chunk
from logicalrep.apply.data_files import DataFiles
from logicalrep.apply.schema.conversion import convert_batch, text_adjustments
from logicalrep.apply.schema.layout import TableLayout, delta_names, make_layout, read_layout
from logicalrep.targets import KEY, NAME, Table


def follow_schema(table: Table, old: TableLayout, chunk: Chunk, *, history: bool) -> TableLayout:
    """Give a Delta table the columns of its relation; return the table's new layout.

    Three schema changes leave the data files as they are: added columns (except with REPLICA IDENTITY FULL),
    changed metadata, and renames if the table format can do them. Other schema changes rewrite all data files
    in one commit.

    Args:
        table: The table.
        old: Current layout of the table.
        chunk: Changes of the relation, with its current columns.
        history: Whether the table keeps all versions of rows (SCD type 2).
    """
    new = make_layout(chunk.columns, table.place.parent, history=history, old=old)
    renames = can_rename(table, old, new)
    if keeps_files(old, new, chunk, renames=renames):
        described = [new.schema.field(new.rescued)] if new.columns != old.columns else []
        if renames:
            table.commit([], [], schema=new.schema)
        else:
            table.change_columns(_added_columns(new), described)
    else:
        _rewrite(table, old, new)
    return read_layout(table, f"{chunk.namespace}.{chunk.name}")


def rename_columns(table: Table, renamed: Iterable[tuple[str, str]]) -> None:
    """Rename columns of a Delta table, each from an earlier to a new name; leave out those that it lacks."""
    old = read_layout(table, table.properties.get(NAME, ""))
    names = {one.name: one.name for one in old.columns}
    for was, now in renamed:
        if now not in names.values():
            names = {name: now if last == was else last for name, last in names.items()}
    columns = [msgspec.structs.replace(one, name=names[one.name]) for one in old.columns]
    if columns == [*old.columns]:
        return
    earlier = {now: name for name, now in names.items()}
    new = make_layout(columns, table.place.parent, history=old.end is not None, old=old, renamed=earlier)
    if KEY in table.properties:
        stored = dict(zip(delta_names(old.columns), delta_names(columns), strict=True))
        # After a kill between the two commits, the key has the new names already.
        key = [stored.get(name, name) for name in msgspec.json.decode(table.properties[KEY])]
        table.set_properties({KEY: msgspec.json.encode(key).decode()})
    if can_rename(table, old, new) and only_adds_columns(new, old, renames=True):
        table.commit([], [], schema=new.schema)
    else:
        _rewrite(table, old, new)


def _rewrite(table: Table, old: TableLayout, new: TableLayout) -> None:
    source, target = DataFiles(table, old.schema), DataFiles(table, new.schema)
    batches = (convert_batch(batch, old, new, new.columns) for file in source for batch in source.read(file))
    table.commit(target.write(batches), None, schema=new.schema)


def can_rename(table: Table, old: TableLayout, new: TableLayout) -> bool:
    """Return whether a new layout renames columns and the data files can stay as they are.

    Files with rescued values of a renamed column cannot stay: they contain the column's old name.
    """
    renamed = {source for name, source in new.sources.items() if name != source}
    if not renamed or table.field_ids(old.schema) is None:
        return False
    files = DataFiles(table, old.schema)
    rescued = (batch[old.rescued].drop_null() for file in files for batch in files.read(file, [old.rescued]))
    return all(renamed.isdisjoint(name for name, _ in row) for one in rescued for row in one.to_pylist())


def keeps_files(old: TableLayout, new: TableLayout, chunk: Chunk, *, renames: bool = False) -> bool:
    """Return whether the data files of a Delta table stay as they are when its layout changes.

    Args:
        old: The layout of the data files.
        new: The layout with the columns of the chunk.
        chunk: Changes of the relation.
        renames: Whether data files can stay as they are when columns are renamed.
    """
    # With REPLICA IDENTITY FULL, a row is looked up by all columns. The value of an added column in existing
    # rows was never sent, so it may equal any value. `_rescued_data` marks it, so that it is not taken for
    # NULL. Writing the marks rewrites the files.
    is_marked = bool(_added_columns(new)) and len(chunk.keys) == len(chunk.columns)
    return not is_marked and only_adds_columns(new, old, renames=renames)


def _added_columns(new: TableLayout) -> list[pa.Field]:
    return [field for field in new.values if field.name not in new.sources]


def only_adds_columns(new: TableLayout, old: TableLayout, *, renames: bool = False) -> bool:
    """Return whether a new layout only adds columns: each old column keeps its type and type modifier.

    Without `renames`, each old column must also keep its name.
    """
    types = {field.name: field.type for field in old.schema}
    sources = {name: name for name in (new.rescued, new.start, new.end) if name in types} | {**new.sources}
    kept = {sources[field.name]: field.type for field in new.schema if field.name in sources}
    is_renamed = any(name != source for name, source in new.sources.items())
    is_same = kept == types and old.rescued == new.rescued and not text_adjustments(old, new)
    return is_same and (renames or not is_renamed)
