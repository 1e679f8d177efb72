"""Changes of a table's columns that give existing rows values which the stream does not contain.

The stream describes columns by name and type only. The numbers of the columns in the catalogs (attnum) show
which columns were renamed, added, or dropped and added again.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from pgoutput import catalog
from pgoutput.recorder.catalog import CatalogTable, Column

ADDED: Final = "added with a default"
RENAMED: Final = "renamed"

WITHOUT_ROWS: Final = frozenset({ADDED, RENAMED})
"""Reasons that do not concern a table without rows."""

_SAME_VALUES: Final = [
    frozenset(catalog.BY_NAME[name].oid for name in names)
    for names in (("int2", "int4", "int8"), ("varchar", "text"))
]
"""Sets of type OIDs. A cast between two types of a set keeps the values, or is refused."""


def altered_columns(
    old: CatalogTable,
    new: CatalogTable,
    renamed_enums: Container[int],
    is_published: Callable[[Column], bool],
    *,
    are_described: bool,
) -> dict[str, list[str]]:
    """Return the columns whose existing values changed without being sent, by reason.

    Args:
        old: The table as read earlier.
        new: The table as read later.
        renamed_enums: OIDs of enum types of which a value was renamed.
        is_published: Returns whether an added column is published.
        are_described: Whether the stream describes the alterations. Then replicas rename columns, and give
            existing rows the constants of added columns.
    """
    was_rewritten = old.file != new.file or not new.file  # the root of partitions has no file
    names = {column.number: name for name, column in old.columns.items()}
    follows_renames = _is_rename_visible(old, new)

    def reason(name: str, now: Column) -> str:
        if now.number not in names:
            if name in old.columns and not are_described:
                return "dropped and added again"
            is_constant = now.origin == "missing"
            has_values = not are_described if is_constant else now.origin and was_rewritten
            return ADDED if has_values and is_published(now) else ""
        was = old.columns[names[now.number]]
        if names[now.number] != name and not (are_described or follows_renames):
            return RENAMED
        if now.base_type_oid in renamed_enums:
            return "of an enum of which a value was renamed"
        types = {was.type_oid, now.type_oid}
        if was_rewritten and len(types) > 1 and not any(types <= same for same in _SAME_VALUES):
            return "retyped (USING may have changed its values)"
        if old.file != new.file and _may_be_using(was, now):
            return "rewritten (ALTER COLUMN … USING)"
        return ""

    reasons: dict[str, list[str]] = {}
    for name, now in sorted(new.columns.items()):
        if text := reason(name, now):
            reasons.setdefault(text, []).append(name)
    return reasons


def _is_rename_visible(old: CatalogTable, new: CatalogTable) -> bool:
    """Return whether replicas infer the renames from the names and types that the stream contains.

    Replicas infer them if all columns, their types and the name of the last column are kept, and no column
    has the earlier name of another column.
    """
    was, now = (sorted(table.columns.items(), key=lambda item: item[1].number) for table in (old, new))
    kept = ("number", "type_oid", "type_modifier")
    is_same = [[getattr(one, key) for key in kept] for _, one in was] == [
        [getattr(one, key) for key in kept] for _, one in now
    ]
    if not is_same or not now:
        return False
    names = [(before, after) for (before, _), (after, _) in zip(was, now, strict=True)]
    renamed = {after for before, after in names if before != after}
    return names[-1][0] == names[-1][1] and renamed.isdisjoint(old.columns)


def _may_be_using(was: Column, now: Column) -> bool:
    """Return whether ALTER COLUMN … TYPE may have changed the values of a column but not its type.

    The statement updates the column's row in pg_attribute, and rewrites the table. VACUUM FULL, CLUSTER and
    TRUNCATE also rewrite a table, and SET NOT NULL also updates the row. This function checks only the row;
    the caller also checks that the table was rewritten.
    """
    same_type = (was.type_oid, was.type_modifier) == (now.type_oid, now.type_modifier)
    return same_type and was.row_version != now.row_version
