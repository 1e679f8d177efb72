"""Filters that Spark pushes down to the data source: conditions on relations and on commit LSNs.

Spark evaluates all filters again on the rows that were read, so the data source may also return rows that the
filters exclude.
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

from logicalrep.views import LsnRange, RelationSchema

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
    """A conjunction of filters on relations and commit LSNs.

    Args:
        filters: The filters that Spark pushes down. Filters on other columns are ignored, and so are filters
            other than comparisons and IN.
    """

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        supported = [one for one in filters if type(one) in _TESTS]
        self._relation: list[Any] = [one for one in supported if one.attribute in _RELATION]  # type: ignore[attr-defined]
        self._lsn: list[Any] = [one for one in supported if one.attribute in _LSN]  # type: ignore[attr-defined]

    def selects_relation(self, shape: RelationSchema) -> bool:
        """Return False if the filters exclude all changes of a relation."""
        return all(_TESTS[type(one)](_RELATION[one.attribute](shape), one.value) for one in self._relation)

    @property
    def lsns(self) -> LsnRange:
        """Range of the commit LSNs that the filters do not exclude."""
        first, last = LsnRange()
        for one in self._lsn:
            lowest, highest = _lsn_bounds(one)
            first, last = max(first, lowest), min(last, highest)
        return LsnRange(first, last)


def _lsn_bounds(one: Any) -> tuple[int, int]:
    """Return the first and the last commit LSN that a filter on the commit LSN may select."""
    first, last = LsnRange()
    match one:
        case EqualTo():
            return one.value, one.value
        case In():
            values = [value for value in one.value if value is not None]
            return min(values, default=last), max(values, default=first)
        case GreaterThan() | GreaterThanOrEqual():
            return one.value, last
        case _:
            return first, one.value


class PushFilters:
    """A callable for a reader's `pushFilters`, which also works if Spark does not push filters down.

    Spark refuses readers that override `pushFilters` while spark.sql.python.filterPushdown.enabled is false,
    which is the default. Spark compares `__func__`, which this object takes from Spark's own method, so Spark
    sees no override.

    Args:
        receive: Called with the filters that Spark pushes down.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, receive: Callable[[Filters], None]) -> None:
        self._receive = receive

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Pass the filters to `receive`; return all filters, so that Spark evaluates them again."""
        self._receive(Filters(filters))
        return filters
