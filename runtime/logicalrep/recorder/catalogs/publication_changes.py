"""Changes of publications between two readings of the catalogs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from logicalrep.recorder.catalogs.catalog import NO_MEMBERSHIP, ROW_OPERATIONS, Catalog, CatalogTable
from logicalrep.wire import format_lsn

_OPERATIONS: Final = *ROW_OPERATIONS, "pubtruncate"
"""Columns of pg_publication that decide which operations (insert, update and so on) are sent."""

_SETTINGS: Final = {
    **ROW_OPERATIONS,
    "pubtruncate": "truncates",
    "pubviaroot": "partitions as their root",
    "pubgencols": "generated columns",
    "puballtables": "all tables",
}
"""Names that texts use for the settings that decide what is sent, by column of pg_publication."""

_MEMBERSHIP: Final = (
    "removed from the publication and added again",
    "column list changed",
    "row filter changed",
)
"""Texts for a changed `Membership`, one for each of its three fields."""


def altered_publications(before: Catalog, after: Catalog) -> dict[str, list[str]]:
    """Return texts that describe what was altered, by name of each altered publication."""
    texts: dict[str, list[str]] = {}
    for oid in before.tables.keys() | after.tables.keys():
        old, new = before.tables.get(oid), after.tables.get(oid)
        had, has = set(old.publications if old else ()), set(new.publications if new else ())
        table = (new or old).full_name  # type: ignore[union-attr]
        for name in has - had:
            texts.setdefault(name, []).append(f"publishes {table}")
        for name in had - has:
            texts.setdefault(name, []).append(f"does not publish {table} any more")
        if old is not None and new is not None:
            for name, text in _membership_changes(old, new):
                texts.setdefault(name, []).append(f"{table}: {text}")
    for name, text in _altered_settings(before, after).items():
        texts.setdefault(name, []).append(text)
    return dict(sorted(texts.items()))


def with_missing_publications(before: Catalog, after: Catalog, names: Collection[str]) -> Catalog:
    """Return `after` with the publications among `names` that it lacks, as in `before`.

    A publication may be missing because it was renamed or dropped. Its OID and row version are needed when a
    publication with its name exists again.
    """
    found = {one.name for one in after.publications}
    missing = [one for one in before.publications if one.name in names and one.name not in found]
    return msgspec.structs.replace(after, publications=(*after.publications, *missing))


def republished_tables(before: Catalog, after: Catalog) -> dict[int, str]:
    """Return why altered publications may send other columns, rows or operations of a table, by its OID.

    Each value is a text such as `row filter changed after 0/16B3748`. Tables that are in only one of the
    readings are left out.
    """
    since = f"after {format_lsn(before.lsn)}"
    settings = _altered_settings(before, after)
    reasons = {}
    for oid, new in after.tables.items():
        if (old := before.tables.get(oid)) is None:
            continue
        if name := next((name for name in new.publications if name in settings), None):
            reasons[oid] = f"the publication {name} was {settings[name]} {since}"
        elif members := [text for _, text in _membership_changes(old, new)]:
            reasons[oid] = f"{', '.join(members)} {since}"
        elif coverage := _coverage_changes(before, after, old, new):
            reasons[oid] = f"{', '.join(coverage)} {since}: changes may be missing"
    return reasons


def _altered_settings(before: Catalog, after: Catalog) -> dict[str, str]:
    """Return texts that describe altered settings of publications, by name of the publication."""
    known = {one.name: one for one in before.publications}
    texts = {}
    for one in after.publications:
        old = known.get(one.name, one)
        was, now = old.settings, one.settings
        altered = [
            f"{text}: {_setting(was.get(column))} before, {_setting(now.get(column))} now"
            for column, text in _SETTINGS.items()
            if was.get(column) != now.get(column)
        ]
        # The row of pg_publication was updated. If nothing differs, not even the owner, a setting was altered
        # and set back. If only the owner differs, nothing is reported.
        if old.row_version != one.row_version and (altered or was == now):
            texts[one.name] = f"altered ({'; '.join(altered) or 'and set back'})"
    return texts


def _membership_changes(old: CatalogTable, new: CatalogTable) -> list[tuple[str, str]]:
    """Return a pair for each changed field of a `Membership` of a table: publication name, and text."""
    return [
        (name, text)
        for name in sorted({*old.publications} & {*new.publications})
        for text, was, now in zip(
            _MEMBERSHIP,
            old.memberships.get(name, NO_MEMBERSHIP),
            new.memberships.get(name, NO_MEMBERSHIP),
            strict=True,
        )
        if was != now
    ]


def _coverage_changes(before: Catalog, after: Catalog, old: CatalogTable, new: CatalogTable) -> list[str]:
    """Return texts that name the publications that began or ceased to publish a table between two readings.

    `old` and `new` describe the table as in `before` and `after`. A publication is ignored if, in both
    readings of the catalogs, another recorded publication published at least the same columns, rows and
    operations of the table.
    """
    had, has = {*old.publications}, {*new.publications}
    publications = {one.name: one for one in (*after.publications, *before.publications)}

    def is_covered(name: str) -> bool:
        columns = (old if name in had else new).memberships.get(name, NO_MEMBERSHIP)[1]
        return any(
            row_filter is None
            and column_list in (None, columns)
            and all(
                publications[other].settings.get(operation) or not publications[name].settings.get(operation)
                for operation in _OPERATIONS
            )
            for other in had & has
            for _, column_list, row_filter in [new.memberships.get(other, NO_MEMBERSHIP)]
        )

    return [
        f"{'not published any more' if name in had else 'published'} by {name}"
        for name in sorted(had ^ has)
        if not is_covered(name)
    ]


def _setting(value: object) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)
