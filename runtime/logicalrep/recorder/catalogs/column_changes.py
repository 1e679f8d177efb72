"""Changes of a table's columns that give existing rows values which the stream does not contain.

The stream describes columns by name and type only. The numbers of the columns in the catalogs (attnum) show
which columns were renamed, added, or dropped and added again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from logicalrep.recorder.catalogs.catalog import Catalog, CatalogTable, Column

ADDED: Final = "added with a default"
RENAMED: Final = "renamed"
SET_BACK: Final = "altered and set back (perhaps renamed)"
ATTACHED: Final = "altered and set back (perhaps with the table attached as a partition for a time)"

_SAME_TEXT: Final = {1047: 47, 1045: 47, 1565: 1580, 1151: 1313}
"""Output functions that write equal bytes as text that means the same.

Those of varchar and bpchar write text, and that of bit writes varbit. Those of timestamptz and timestamp need
a time zone of UTC, without which the server rewrites the table.
"""

WITHOUT_ROWS: Final = frozenset({ADDED, RENAMED})
"""Reasons that do not make a table incomplete if it has no rows."""


def altered_columns(
    old: CatalogTable,
    new: CatalogTable,
    altered_types: Mapping[int, str],
    was_published: Callable[[Column], bool],
    is_published: Callable[[Column], bool],
    *,
    was_rewritten: bool,
    are_described: bool,
) -> dict[str, list[str]]:
    """Return the names of the columns whose existing values changed without being sent, by reason.

    Args:
        old: The table as read earlier.
        new: The table as read later.
        altered_types: Why existing values of altered types have another text now, by OID of the type; the
            function `altered_types` returns it.
        was_published: Returns whether a column of `old` was published.
        is_published: Returns whether a column of `new` is published.
        was_rewritten: Whether ALTER TABLE may have rewritten the table.
        are_described: Whether an event trigger describes each ALTER TABLE in the stream. If so, replicas
            rename columns and fill added columns with their constant default themselves, and the result does
            not report these alterations.
    """
    # An added column can have values in existing rows that the catalogs do not show. This needs a new file:
    # ALTER TABLE writes the values of a volatile default into a new file; VACUUM FULL writes a constant
    # default, which the catalogs show until then (origin `missing`). A partitioned table has neither a file
    # nor such a constant in the catalogs, so a new file is assumed.
    has_new_file = new.is_root or {one.file for one in new.storages.values()} != {
        one.file for one in old.storages.values()
    }
    names = {column.number: name for name, column in old.columns.items()}
    last = old.columns if old.undescribed is None else old.undescribed
    last_names = {column.number: name for name, column in last.items()}
    follows_renames = _is_rename_visible(last, new.columns)
    may_be_attached = _may_have_been_attached(old, new)

    def reason(name: str, now: Column) -> str:
        if now.type_oid in altered_types:
            return altered_types[now.type_oid]
        if now.number not in names:
            if name in old.columns and not are_described:
                return "dropped and added again"
            is_constant = now.origin == "missing"
            has_values = not are_described if is_constant else now.origin and has_new_file
            return ADDED if has_values and is_published(now) else ""
        was = old.columns[names[now.number]]
        if last_names.get(now.number, name) != name and not (are_described or follows_renames):
            return RENAMED
        if is_published(now) and not was_published(was):
            return "not published before"
        if was.row_version == now.row_version:
            return ""
        if was_rewritten and _types(was) != _types(now):
            return "retyped (USING may have changed its values)"
        if not _has_same_text(was, now):
            return "retyped (its values have other texts)"
        if was_rewritten:  # SET NOT NULL and others also change pg_attribute, but rewrite no table
            return "rewritten (ALTER COLUMN … USING)"
        return ATTACHED if may_be_attached else ""

    reasons: dict[str, list[str]] = {}
    for name, now in sorted(new.columns.items()):
        if text := reason(name, now):
            reasons.setdefault(text, []).append(name)
    return reasons


def _may_have_been_attached(old: CatalogTable, new: CatalogTable) -> bool:
    """Return whether a table may have been a partition of another table for a time between two readings.

    True if the table's row in pg_class and the rows of all its columns were updated, as ATTACH and DETACH
    PARTITION do. While a table is a partition, the server may send its changes as changes of its root.
    """
    kept = _kept_columns(old, new)
    return old.row_version != new.row_version and all(was.row_version != now.row_version for was, now in kept)


def may_be_set_back(old: CatalogTable, new: CatalogTable) -> bool:
    """Return whether a column may have had another name or type between two readings, and was set back.

    True if the row of a kept column in pg_attribute was updated. Also true if several columns were added
    between the readings, and some but not all of them were dropped again: a dropped column may have had the
    name that another added column has now.
    """
    numbers = {one.number for one in new.columns.values()}
    added = set(range(old.greatest_number + 1, new.greatest_number + 1))
    return any(was.row_version != now.row_version for was, now in _kept_columns(old, new)) or bool(
        added & numbers and added - numbers
    )


def _kept_columns(old: CatalogTable, new: CatalogTable) -> list[tuple[Column, Column]]:
    """Return a pair for each column that is in both readings of a table: the column in `old` and in `new`."""
    earlier = {one.number: one for one in old.columns.values()}
    return [(earlier[one.number], one) for one in new.columns.values() if one.number in earlier]


def _is_rename_visible(old: Mapping[str, Column], new: Mapping[str, Column]) -> bool:
    """Return whether replicas can infer from the stream which columns of `old` have other names in `new`.

    Replicas infer them if no column was added, dropped or given another type, the last column keeps its name,
    and no renamed column has a name that is in `old`. The keys of `old` and `new` are the column names.
    """
    was, now = (sorted(columns.items(), key=lambda item: item[1].number) for columns in (old, new))
    if not now or [(one.number, _types(one)) for _, one in was] != [
        (one.number, _types(one)) for _, one in now
    ]:
        return False
    names = [(before, after) for (before, _), (after, _) in zip(was, now, strict=True)]
    renamed = {after for before, after in names if before != after}
    return names[-1][0] == names[-1][1] and renamed.isdisjoint(old)


def renamed_columns(old: CatalogTable, new: CatalogTable) -> tuple[tuple[str, str], ...]:
    """Return earlier and new name of each renamed column; () if a new name was the name of another column."""
    names = {column.number: name for name, column in old.columns.items()}
    pairs = [(names.get(column.number, name), name) for name, column in new.columns.items()]
    renamed = tuple((was, now) for was, now in pairs if was != now)
    return renamed if old.columns.keys().isdisjoint(now for _, now in renamed) else ()


def with_undescribed(before: Catalog, after: Catalog) -> Catalog:
    """Return `after`, with `undescribed` set for each table with an alteration not yet seen in the stream.

    `CatalogTable.undescribed` has the columns before the oldest alteration that no Relation message shows
    yet.
    """
    tables = {}
    for oid, now in after.tables.items():
        was = before.tables.get(oid)
        if was is not None and (was.undescribed is not None or was.columns != now.columns):
            now = msgspec.structs.replace(now, undescribed=was.undescribed or was.columns)
        tables[oid] = now
    return msgspec.structs.replace(after, tables=tables)


def without_undescribed(catalog: Catalog, described: Collection[int]) -> Catalog:
    """Return `catalog`, with `undescribed` set to None for the tables whose OIDs are in `described`.

    `CatalogTable.undescribed` has the columns before the oldest alteration that no Relation message shows
    yet.
    """
    tables = {
        oid: msgspec.structs.replace(one, undescribed=None) if oid in described else one
        for oid, one in catalog.tables.items()
    }
    return msgspec.structs.replace(catalog, tables=tables)


def following_columns(old: Mapping[str, Column], new: Mapping[str, Column]) -> tuple[str, ...]:
    """Return the altered columns of `new` whose existing values follow from `old`, without a rewrite.

    These are columns that were added without a default, and columns whose new type writes the same texts.
    """
    numbers = {column.number: column for column in old.values()}
    return tuple(
        name
        for name, now in new.items()
        for was in [numbers.get(now.number)]
        if (not now.origin if was is None else _types(was) != _types(now) and _has_same_text(was, now))
    )


def explain_rewrite(old: CatalogTable, new: CatalogTable) -> bool:
    """Return whether alterations of columns explain why ALTER TABLE has rewritten a table.

    ALTER COLUMN … TYPE and SET EXPRESSION update the row of the column in pg_attribute.
    """
    columns = {column.number: column for column in old.columns.values()}
    return any(
        now.origin in ("default", "generated") if was is None else was.row_version != now.row_version
        for now in new.columns.values()
        for was in [columns.get(now.number)]
    )


def has_new_column(old: CatalogTable, new: CatalogTable) -> bool:
    """Return whether a table has a column that was added between two readings.

    The column may have been added with a default that was dropped again. `new` then does not show the
    default, which existing rows got as the value of the column.
    """
    return not {one.number for one in new.columns.values()} <= {one.number for one in old.columns.values()}


def altered_types(before: Catalog, after: Catalog) -> dict[int, str]:
    """Return why existing values of altered types have another text now, by OID of the type.

    Such a type is an enum of which a value was renamed, or a composite type whose attributes were altered. A
    type that `before` lacks counts as altered if its rows may be younger than `before` and than its creation.
    """
    reasons = {}
    for oid, now in after.types.items():
        was = before.types.get(oid)
        if was is None:
            if oid in after.type_changes and (after.type_changes[oid] - before.xid) % 2**32 < 2**31:
                reasons[oid] = "of a type that was altered"
            continue
        if any(now.get(place, value) != value for place, value in was.items() if place.startswith("enum")):
            reasons[oid] = "of an enum of which a value was renamed"
        elif any(not place.startswith("enum") for place, _ in was.items() ^ now.items()):
            reasons[oid] = "of a composite type whose attributes were altered"
    return reasons


def _has_same_text(was: Column, now: Column) -> bool:
    """Return whether types write equal bytes as text that means the same; modifiers change no text."""
    forms = {_SAME_TEXT.get(one.output, one.output) for one in (was, now)}
    return was.type_oid == now.type_oid or len(forms) == 1


def _types(column: Column) -> tuple[int, int]:
    return column.type_oid, column.type_modifier
