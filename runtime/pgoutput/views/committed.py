"""Which changes of a segment are committed work, read with no other segment.

What a segment cannot know by itself, since it is decided later, comes with it: a `Task` names the streamed,
prepared and divided transactions whose commits are being read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pgoutput import messages
from pgoutput.columns.epochs import change_error, misfits
from pgoutput.columns.index import Index, Numbers, by_tag
from pgoutput.columns.read import index_messages
from pgoutput.errors import DecodeError, StreamError
from pgoutput.recording import SegmentReader
from pgoutput.views.commits import Commit, Commits, CommitsByRow
from pgoutput.views.rows import Changes, used_shapes
from pgoutput.views.shapes import UNKNOWN, ShapeEpochs, Wanted


class Committed(NamedTuple):
    """Changes that are committed."""

    changes: Changes
    positions: Numbers
    commits: Commits
    """The commits of some of them."""
    commit: Numbers
    """Each change's place in them."""


class CommittedChanges:
    """Picks the changes of committed transactions out of a segment.

    Args:
        segment: The segment; its messages are given to `pick`.
        whole: Whether transactions that lie wholly inside are wanted.
        commits: The others that are wanted, by the position where they begin.
        wanted: Which relations' changes are.
    """

    def __init__(
        self,
        segment: SegmentReader,
        *,
        whole: bool,
        commits: Mapping[int, Commit],
        wanted: Wanted = lambda shape: True,
    ) -> None:
        said = segment.metadata
        parts = [part.begin for part in said.parts]
        # What began before the segment is opened anew by its keyframe, and known by its xid.
        begun = {part.xid: part.begin for part in said.parts if part.begin < said.first_position}
        self._segment = segment
        self._decoder = segment.decoder()
        self._commits = CommitsByRow(parts, commits, begun, whole=whole)
        self._epochs = ShapeEpochs(wanted)

    def pick(self, positions: pa.Array, data: pa.Array) -> Committed:
        """The changes among messages that follow those of the last call.

        Args:
            positions: Of the messages; NULL in the keyframe.
            data: The messages.

        Raises:
            RecordingError: A message cannot be read, or no server sends it there.
        """
        index = index_messages(data, self._decoder)
        places = np.asarray(positions.fill_null(-1) if positions.null_count else positions)
        commits, of = self._commits.follow(index, places)
        rows = np.flatnonzero(_IS_CHANGE[index.tags] & commits.wanted[of] & (places >= 0))
        rows, oids = named_relations(index, self._commits.not_rolled_back(index, rows, commits, of))
        numbers = self._epochs.find(index, rows, oids)
        wanted = numbers >= 0
        unknown = _Unknown(rows[numbers == UNKNOWN], oids[numbers == UNKNOWN])
        if not wanted.all():
            rows, numbers = rows[wanted], numbers[wanted]
        changes = Changes(index, rows, *used_shapes(self._epochs.shapes, numbers))
        committed = Committed(changes, places[rows], commits, of[rows])
        if errors := list(_errors(committed, unknown)):
            row, error = min(errors, key=_row)
            raise self._segment.error_at(positions[row].as_py(), error)
        return committed


def named_relations(index: Index, rows: Numbers) -> tuple[Numbers, Numbers]:
    """What changes name: their rows, once for each relation, and the relations' OIDs."""
    oids = index.field("relation_oid").values[rows]
    truncates = np.flatnonzero(index.tags[rows] == _TRUNCATE)
    if not len(truncates):
        return rows, oids
    counts = np.ones(len(rows), np.int64)
    named = [one.relation_oids for one in index.messages(rows[truncates].tolist())]  # type: ignore[attr-defined]
    counts[truncates] = [len(one) for one in named]
    several = np.repeat(oids, counts)
    several[np.repeat(index.tags[rows] == _TRUNCATE, counts)] = list(chain.from_iterable(named))
    return np.repeat(rows, counts), several


class _Unknown(NamedTuple):
    """Changes of relations that no message has told of."""

    rows: Numbers
    oids: Numbers


def _errors(committed: Committed, unknown: _Unknown) -> Iterator[tuple[int, DecodeError]]:
    """The first error of each kind, and its row."""
    changes = committed.changes
    index = changes.index
    yield from ((row, index.errors[row]) for row in sorted(index.errors)[:1])
    for row, oid in zip(unknown.rows[:1].tolist(), unknown.oids[:1].tolist(), strict=True):
        yield row, change_error(index.messages([row])[0], oid, None)
    for change in np.flatnonzero(misfits(index, changes.rows, changes.widths))[:1].tolist():
        row, relation = int(changes.rows[change]), changes.shapes[changes.shape[change]].relation
        yield row, change_error(index.messages([row])[0], relation.oid, relation)
    far = committed.commits.lsns < 0
    for row in changes.rows[far[committed.commit]][:1].tolist() if far.any() else ():
        yield row, StreamError.at(index.messages([row])[0], "its commit has an LSN of 2**63 or more")


def _row(found: tuple[int, DecodeError]) -> int:
    return found[0]


ROW_CHANGES: Final = (messages.Insert, messages.Update, messages.Delete, messages.Truncate)

_IS_CHANGE: Final = by_tag(ROW_CHANGES)
_TRUNCATE: Final = ord(messages.Truncate.wire_tag)
