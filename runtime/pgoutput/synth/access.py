"""What one transaction does with rows, and what it holds of tables meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pgoutput.errors import ScenarioError
from pgoutput.synth.ledger import Ledger
from pgoutput.synth.literals import to_text
from pgoutput.synth.shapes import Cells, Column, cell
from pgoutput.synth.tables import Row, ScenarioTable

Undo: TypeAlias = Callable[[], None]
"""Takes back what was done."""


class Access:
    """A transaction's way to tables.

    Args:
        ledger: Where it is noted.
        holder: The transaction.
    """

    def __init__(self, ledger: Ledger[Any], holder: object) -> None:
        self._ledger = ledger
        self._holder = holder

    def use(self, table: ScenarioTable) -> None:
        """As ROW EXCLUSIVE: nobody else may have it for himself.

        Raises:
            ScenarioError: Somebody has.
        """
        if table.locked_by not in (None, self._holder):
            raise ScenarioError(
                f"{table.shape.full_name}: another transaction has truncated or altered it and has not "
                "ended: a server would wait for it"
            )
        table.users.add(self._holder)
        self._ledger.use(self._holder, table)

    def lock(self, *tables: ScenarioTable) -> None:
        """As ACCESS EXCLUSIVE, but to the end of the transaction even where a savepoint is rolled back.

        Raises:
            ScenarioError: Somebody else uses one of them.
        """
        for table in tables:
            self.use(table)
            if table.users != {self._holder}:
                raise ScenarioError(
                    f"{table.shape.full_name}: another transaction that has not ended has changed it: a "
                    "server would wait for it"
                )
        for table in tables:
            table.locked_by = self._holder

    def find(self, table: ScenarioTable, where: Mapping[str, Any]) -> tuple[ScenarioTable, Row, Cells]:
        """The one row that has these values, and where it lies.

        Raises:
            ScenarioError: None has, or different ones; or another transaction holds it.
        """
        if not where:
            raise ScenarioError(
                f"{table.shape.full_name}: say which row, by the values of its key or in `where`"
            )
        found: list[tuple[ScenarioTable, Row, Cells]] = []
        for leaf in table.leaves():
            self.use(leaf)
            wanted = {leaf.shape.column(name): text for name, text in leaf.shape.texts(where).items()}
            found.extend((leaf, row, seen) for row, seen in self._matching(leaf, wanted))
        if not found:
            raise ScenarioError(f"{table.shape.full_name} has no row with {dict(where)}")
        if any(seen != found[0][2] for _, _, seen in found):
            raise ScenarioError(f"{table.shape.full_name} has {len(found)} rows with {dict(where)}: name one")
        leaf, row, seen = found[0]
        if row.writer not in (None, self._holder):
            raise ScenarioError(
                f"{leaf.shape.full_name}: another transaction has changed the row with {dict(where)} and has "
                "not ended: a server would wait for it"
            )
        return leaf, row, seen

    def _matching(
        self, leaf: ScenarioTable, wanted: Mapping[Column, str | None]
    ) -> Iterator[tuple[Row, Cells]]:
        key = next((key for key in leaf.shape.keys if all(column in wanted for column in key)), None)
        rows = list(leaf.rows.values()) if key is None else leaf.find(key, tuple(wanted[c] for c in key))
        for row in rows:
            seen = row.seen_by(self._holder)
            if seen is not None and all(cell(seen, column) == text for column, text in wanted.items()):
                yield row, seen

    def claim_keys(self, leaf: ScenarioTable, cells: Cells, itself: Row | None = None) -> Undo:
        """Make sure that a row's keys are nobody else's.

        Args:
            leaf: Where the row goes.
            cells: The row.
            itself: The row that it is made of, whose keys may stay.

        Raises:
            ScenarioError: Another row has one of them, or might have, or there is a NULL in one.
        """
        claimed = []
        for key in leaf.shape.keys:
            values = tuple(cell(cells, column) for column in key)
            shown = ", ".join(f"{column.name}={value}" for column, value in zip(key, values, strict=True))
            if None in values:
                raise ScenarioError(f"{leaf.shape.full_name}: NULL in the key ({shown})")
            others = {row.writer for row in leaf.find(key, values)} | {leaf.claims.get((key, values))}
            if others - {None, self._holder}:
                raise ScenarioError(
                    f"{leaf.shape.full_name}: another transaction that has not ended has changed a row with "
                    f"{shown}: a server would wait for it"
                )
            seen = (row.seen_by(self._holder) for row in leaf.find(key, values) if row is not itself)
            if any(cells is not None and _has(cells, key, values) for cells in seen):
                raise ScenarioError(f"{leaf.shape.full_name} has a row with {shown} already")
            claimed.append((key, values))
        new = {key for key in claimed if key not in leaf.claims}  # not `-`, which goes through all claims
        leaf.claims |= dict.fromkeys(claimed, self._holder)
        return lambda: leaf.unclaim(new)

    def add(self, leaf: ScenarioTable, cells: Cells) -> Undo:
        """Add a row."""
        row = leaf.add(cells, self._holder)
        self._ledger.touch(self._holder, leaf, row)
        return lambda: _restore(leaf, row, None, self._holder)

    def set(self, leaf: ScenarioTable, row: Row, cells: Cells | None) -> Undo:
        """Replace a row; None removes it."""
        before, writer = row.current, row.writer
        row.current, row.writer = cells, self._holder
        leaf.index(row)
        self._ledger.touch(self._holder, leaf, row)
        return lambda: _restore(leaf, row, before, writer)

    def truncate(self, leaf: ScenarioTable, part: object) -> Undo:
        """Remove all rows.

        Args:
            leaf: The table.
            part: The part of the transaction that does so.
        """
        before, leaf.truncated_in = leaf.truncated_in, part
        undone = [self.set(leaf, row, None) for row in self._seen(leaf)]

        def undo() -> None:
            leaf.truncated_in = before
            for one in undone:
                one()

        return undo

    def rewrite(self, table: ScenarioTable, columns: Sequence[Column]) -> Undo:
        """Write values anew, as the new types of columns have them.

        Raises:
            ScenarioError: A type does not have a value. Nothing has changed then.
        """
        rows = [(row, _rewritten(row.current, columns)) for row in self._seen(table)]
        undone = [self.set(table, row, cells) for row, cells in rows]

        def undo() -> None:
            for one in undone:
                one()

        return undo

    def _seen(self, leaf: ScenarioTable) -> list[Row]:
        return [row for row in leaf.rows.values() if row.seen_by(self._holder) is not None]


def _restore(leaf: ScenarioTable, row: Row, cells: Cells | None, writer: object) -> None:
    row.current, row.writer = cells, writer
    leaf.index(row)


def _rewritten(cells: Cells | None, columns: Sequence[Column]) -> Cells:
    written = list(cells or ())
    for column in columns:
        if column.number < len(written):
            written[column.number] = to_text(written[column.number], column.type)
    return tuple(written)


def _has(cells: Cells, key: tuple[Column, ...], values: Cells) -> bool:
    return tuple(cell(cells, column) for column in key) == values
