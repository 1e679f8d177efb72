"""Filters that Spark pushes down: what they say of relations and of commits.

Spark evaluates all of them again, so it does no harm to read too much.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from pgoutput.views import LsnRange, RelationSchema

_TESTS: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    In: lambda value, several: value in several,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}

_RELATION: Final[Mapping[tuple[str, ...], Callable[[RelationSchema], int | str]]] = {
    ("relation", "oid"): lambda shape: shape.relation.oid,
    ("relation", "namespace"): lambda shape: shape.namespace,
    ("relation", "name"): lambda shape: shape.name,
}

_LSN: Final = {("commit_lsn",), ("sequence", "commit_lsn")}


class Filters:
    """What is wanted, all of it at once.

    Args:
        filters: The filters; those that say nothing of relations and commit LSNs are passed over.
    """

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        known = [one for one in filters if type(one) in _TESTS]
        self._relation: list[Any] = [one for one in known if one.attribute in _RELATION]  # type: ignore[attr-defined]
        self._lsn: list[Any] = [one for one in known if one.attribute in _LSN]  # type: ignore[attr-defined]

    def wants(self, shape: RelationSchema) -> bool:
        """Whether changes of the relation are wanted."""
        return all(_TESTS[type(one)](_RELATION[one.attribute](shape), one.value) for one in self._relation)

    @property
    def lsns(self) -> LsnRange:
        """In which range the commit LSNs are that are wanted."""
        first, last = LsnRange()
        for one in self._lsn:
            lowest, highest = _bounds(one)
            first, last = max(first, lowest), min(last, highest)
        return LsnRange(first, last)


def _bounds(one: Any) -> tuple[int, int]:
    first, last = LsnRange()
    match one:
        case EqualTo():
            return one.value, one.value
        case In():
            known = [value for value in one.value if value is not None]
            return min(known, default=last), max(known, default=first)
        case GreaterThan() | GreaterThanOrEqual():
            return one.value, last
        case _:
            return first, one.value


class PushFilters:
    """A reader's method `pushFilters`, for sessions that push filters down and for those that do not.

    Where the setting spark.sql.python.filterPushdown.enabled is off, which it is by default, Spark refuses
    readers that override the method. This does not count as overriding it.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[Filters], None]) -> None:
        self._take = take

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters, and leave them all to Spark as well."""
        self._take(Filters(filters))
        return filters
