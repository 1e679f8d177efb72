"""Fit a profile to a recorded stream: the shape of its tables and transactions, without values."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from os import PathLike
from typing import Any, Final

import msgspec
import numpy as np

from logicalrep import catalog
from logicalrep._roles import ROLES, field_name, meaning_of, tuples
from logicalrep.errors import RecordingError
from logicalrep.messages import ColumnFlag, Relation
from logicalrep.stream import Change, Transaction
from logicalrep.synth.programs import Operations
from logicalrep.synth.workload.definition import (
    MAX_TABLES,
    ColumnShape,
    Mix,
    Profile,
    Range,
    TableShape,
)
from logicalrep.synth.workload.row_choice import DELETE, INSERT, UPDATE
from logicalrep.synth.workload.tables import unique_column

_MAX_TRANSACTIONS: Final = 20_000
"""Number of transactions, from the start of the stream, to which a profile is fitted."""
_MAX_PATTERNS: Final = 1_000
"""Maximum number of patterns of a profile. A pattern is the changes of one transaction."""
_MAX_CHANGES: Final = 10_000
"""Maximum number of changes of a pattern; the rest of a larger transaction is left out."""
_QUANTILES: Final = 9
"""Number of quantiles that describe the sizes of a column's values."""

_KINDS: Final = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
_BUILTIN: Final = catalog.BY_OID.keys() | catalog.BY_ARRAY_OID.keys()
_TEXT_OID: Final = catalog.BY_NAME["text"].oid


class _Table(msgspec.Struct):
    """Counts and sizes of the values that one table has in the recorded stream."""

    number: int
    relation: Relation
    cells: int = 0
    nulls: dict[str, int] = {}
    """Number of NULLs by name of the column."""
    sizes: dict[str, list[int]] = {}
    """Lengths of the values that are not NULL, in characters or bytes, by name of the column."""

    def add(self, relation: Relation, row: Iterable[Any]) -> None:
        """Count the NULLs and record the sizes of the other values in a new row."""
        self.cells += 1
        for column, cell in zip(relation.columns, row, strict=True):
            if cell is None:
                self.nulls[column.name] = self.nulls.get(column.name, 0) + 1
            elif isinstance(cell, str | bytes):
                self.sizes.setdefault(column.name, []).append(len(cell))

    def shape(self) -> TableShape:
        """Return the columns, key and sizes of values of the table."""
        relation = self.relation
        quantiles = np.linspace(0, 1, _QUANTILES)
        identity: Any = relation.replica_identity.name.lower()
        columns = tuple(
            ColumnShape(
                name=column.name,
                type_oid=column.type_oid if column.type_oid in _BUILTIN else _TEXT_OID,
                type_modifier=column.type_modifier,
                key=bool(column.flags & ColumnFlag.KEY) and identity != "full",
                nulls=self.nulls.get(column.name, 0) / max(self.cells, 1),
                sizes=tuple(np.quantile(self.sizes.get(column.name, [0]), quantiles).astype(int).tolist()),
            )
            for column in relation.columns
        )
        shape = TableShape(
            name=relation.name,
            namespace=relation.namespace or "pg_catalog",
            columns=columns,
            replica_identity=identity,
        )
        has_key = any(column.key for column in columns)
        if has_key and unique_column(shape) is None:  # a workload cannot make distinct values of this key
            return msgspec.structs.replace(shape, replica_identity="full")
        return shape


class _Fit:
    """Collects what a profile needs from a stream: tables, patterns and counts of transactions.

    A pattern is the list of the changes of one transaction, as in `Profile.patterns`.
    """

    def __init__(self) -> None:
        self.tables: dict[str, _Table] = {}
        self.patterns: list[tuple[int, ...]] = []
        self.roles: set[str] = set()
        self.varied = self.altered = self.transactions = 0
        self.kinds = [0, 0, 0]

    def add(self, transaction: Transaction) -> None:
        """Count a transaction and its changes; unless it is varied, append its changes to `patterns`.

        A transaction is varied if it is replicated or prepared, has messages other than inserts, updates and
        deletes, changes a table for the first time after ALTER TABLE, or gives a row a new key.
        """
        varied = transaction.origin is not None or transaction.gid is not None
        pattern: list[int] = []
        for change in transaction.changes:
            role = ROLES[type(change.message)]
            self.roles.add(role)
            if role not in _KINDS:
                varied = True
            elif len(pattern) < _MAX_CHANGES:
                varied |= self._add_change(change, _KINDS[role], pattern)
        self.transactions += 1
        self.varied += varied
        if pattern and not varied:
            self.patterns.append(tuple(pattern))

    def _add_change(self, change: Change, kind: int, pattern: list[int]) -> bool:
        """Append a change to `pattern`; return whether the change makes its transaction a varied one.

        A change does so if its table was altered since the table's previous change, or if its row gets a new
        key. `kind` is INSERT, UPDATE or DELETE. See `add` for varied transactions.
        """
        (relation,), message = change.relations, change.message
        name = f"{relation.namespace}.{relation.name}"
        table = self.tables.setdefault(name, _Table(len(self.tables), relation))
        altered = table.relation.columns != relation.columns
        table.relation = relation
        self.altered += altered
        self.kinds[kind] += 1
        pattern.append(3 * table.number + kind)
        new = field_name(type(message), "new")
        for field, cells in tuples(message):
            if field.partition("[")[0] == new:
                table.add(relation, cells)
        return altered or (kind == UPDATE and meaning_of(message, "key") is not None)


def fit_profile(transactions: Iterable[Transaction]) -> Profile:
    """Return a profile whose workloads resemble a recorded stream.

    The profile has the stream's tables with their columns, types, keys, fractions of NULLs and sizes of
    values, and the order of changes in its transactions. It has no values. Transactions with other changes,
    such as TRUNCATE, ALTER TABLE or changed keys, become varied transactions (those with all kinds of
    messages).

    Args:
        transactions: The committed transactions of the stream, such as those of
            `RecordingReader(path).transactions()`. At most 20,000 are read.

    Raises:
        TypeError: `transactions` is a path or a location.
        RecordingError: The stream has no row changes that a workload can have.
    """
    if isinstance(transactions, str | PathLike):
        raise TypeError(
            "fit_profile takes transactions, not a path; pass RecordingReader(path).transactions()"
        )
    fit = _Fit()
    for transaction in islice(transactions, _MAX_TRANSACTIONS):
        fit.add(transaction)
    if not fit.patterns:
        raise RecordingError(
            f"none of {fit.transactions:,} transactions consists of inserts, updates and deletes only, so no "
            "profile can be fitted: record more of the stream, or use a predefined profile by its name"
        )
    if len(fit.tables) > MAX_TABLES:
        raise RecordingError(
            f"the transactions change {len(fit.tables)} tables, but a profile has at most {MAX_TABLES}, so "
            "no profile can be fitted: use a predefined profile by its name"
        )
    step = -(-len(fit.patterns) // _MAX_PATTERNS)
    patterns = tuple(fit.patterns[::step])
    changes = max(1, sum(map(len, patterns)) // len(patterns))
    sizes = [sum(map(sum, table.sizes.values())) / max(table.cells, 1) for table in fit.tables.values()]
    value_size = int(sum(sizes) / len(sizes) / 2)
    inserts, updates, deletes = fit.kinds
    return Profile(
        tables=len(fit.tables),
        shapes=tuple(table.shape() for table in fit.tables.values()),
        patterns=patterns,
        changes=Range(changes, changes),
        mix=Mix(max(inserts, 1), updates, min(deletes, inserts)),
        value_sizes=Range(value_size, value_size),
        large=0,
        varied=fit.varied / fit.transactions,
        operations=Operations(
            truncate="truncate" in fit.roles,
            alter=2 * (fit.altered > 0),
            emit="payload" in fit.roles,
        ),
    )
