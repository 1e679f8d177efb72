"""Apply the changes of a micro-batch, the range of segments that a query applies at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

import msgspec

from logicalrep import compiled
from logicalrep.apply import SortedChanges, TableResult, Updates, apply_changes
from logicalrep.recording import SegmentReader, locate
from logicalrep.targets import NOTHING, Position
from logicalrep.views import RelationChanges, RelationSchema, Task, read_changes


class MicroBatch(msgspec.Struct, frozen=True):
    """The changes to apply, and the tables that lack them. Processes pass it to each other with pickle."""

    recording: str
    """UUID of the recording."""
    target: str
    """Path or URI of the folder that holds the replica."""
    history: bool
    """Whether to keep all versions of rows (SCD type 2)."""
    updates: Updates | None
    """How commits remove rows from now on, as in `replicate`."""
    tasks: tuple[Task, ...]
    """The tasks that read the changes."""
    known: Mapping[int, Position]
    """Positions of the tables, by relation OID; `NOTHING` for a table that does not exist."""
    from_snapshot: frozenset[int]
    """OIDs of the relations whose changes are skipped before the first snapshot that replaces all rows."""
    wanted: frozenset[int]
    """OIDs of the relations in `known` whose tables do not have these changes yet."""
    wants_others: bool
    """Whether the changes of relations that are not in `known` are applied."""

    def is_wanted(self, schema: RelationSchema) -> bool:
        """Return whether changes of a relation are applied."""
        oid = schema.relation.oid
        return oid in self.wanted or (self.wants_others and oid not in self.known)

    def apply(self, oid: int, read: Callable[[], Iterator[RelationChanges]]) -> TableResult | None:
        """Apply the changes of one relation to its table; return None if the table had them already.

        Args:
            oid: OID of the relation.
            read: Returns the changes in the order of their positions; it can be called again.
        """
        result = apply_changes(
            read,
            locate(self.target),
            oid,
            self.recording,
            history=self.history,
            updates=self.updates,
            known=self.known.get(oid, NOTHING),
            from_snapshot=oid in self.from_snapshot,
        )
        return None if result is None or result.is_empty else result


Watch: TypeAlias = Callable[[int, int], None]
"""A function that shows progress. Its arguments are the number of changes that were handed to their tables so
far, and the number of all changes (0 while they are read). It raises an exception to stop the engine."""

Engine: TypeAlias = Callable[[MicroBatch, Watch], list[TableResult]]
"""A function that applies a micro-batch, and returns one result for each changed table, by ascending OID."""


def apply_in_process(batch: MicroBatch, watch: Watch) -> list[TableResult]:
    """Apply a micro-batch in this process, one table after the other.

    Args:
        batch: The micro-batch.
        watch: Called with the number of changes that were handed to their tables so far, and the number of
            all changes (0 while they are read). An exception of `watch` ends this call.
    """
    with SortedChanges() as changes:
        for task in batch.tasks:
            watch(0, 0)
            with SegmentReader(task.place) as segment:
                for one in read_changes(segment, task, batch.is_wanted):
                    changes.append(one)
        if compiled.kernel is not None:
            compiled.kernel.free_blocks()  # up to 64 MiB, which applying the changes does not need
        results, applied = [], 0

        def watched(oid: int) -> Iterator[RelationChanges]:
            done = applied
            for one in changes.sorted(oid):
                watch(done, changes.counts.total())
                yield one
                done += one.rows.num_rows

        for oid in sorted(changes.counts):
            results.append(batch.apply(oid, partial(watched, oid)))
            applied += changes.counts[oid]
        return [one for one in results if one is not None]
