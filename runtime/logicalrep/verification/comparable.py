"""Columns whose values cannot be compared as text."""

from __future__ import annotations

from collections.abc import Sequence

from logicalrep import catalog
from logicalrep.errors import ReplicaError
from logicalrep.messages import RelationColumn
from logicalrep.views import Column
from logicalrep.wire import shown_text


def check_columns(
    columns: Sequence[Column] | Sequence[RelationColumn], *, binary: bool, server_version: int
) -> None:
    """Check that each column has a type whose text in a replica equals the server's text.

    Args:
        columns: The columns, with base types in place of domains.
        binary: Whether the recording has values in binary format.
        server_version: Version of the server as server_version_num.

    Raises:
        ReplicaError: The text of some columns may differ.
    """
    if binary and (names := [one.name for one in columns if not _is_text_known(one.type_oid)]):
        raise ReplicaError(
            f"the columns {_listed(names)} cannot be compared: the recording has their values in binary "
            "format, which logicalrep does not convert to the server's text. Name only other tables "
            "(--table), or record anew without the stream option binary"
        )
    # Before PostgreSQL 12, the server rounds a float in its text (extra_float_digits is 0 by default).
    if server_version < 120_000 and (
        names := [one.name for one in columns if _type_name(one.type_oid).startswith("float")]
    ):
        raise ReplicaError(
            f"the columns {_listed(names)} cannot be compared: they have floats, which servers before "
            "PostgreSQL 12 round in their text. Name only other tables (--table), or upgrade the server"
        )


def _is_text_known(type_oid: int) -> bool:
    name = _type_name(type_oid)
    return name not in ("", "money") and not name.startswith("reg")


def _type_name(type_oid: int) -> str:
    """Return the name of a built-in type, or of the elements of an array; empty for other types."""
    builtin = catalog.BY_ARRAY_OID.get(type_oid) or catalog.BY_OID.get(type_oid)
    return "" if builtin is None else builtin.name


def _listed(names: list[str]) -> str:
    return ", ".join(map(shown_text, names))
