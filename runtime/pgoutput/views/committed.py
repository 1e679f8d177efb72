"""Which changes of a segment are committed work, read with no other segment.

What a segment cannot know by itself, since it is decided later, comes with it: a `Task` names the streamed,
prepared and divided transactions whose commits are being read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from pgoutput import messages
from pgoutput.errors import DecodeError, StreamError
from pgoutput.messages import Relation, TupleData
from pgoutput.segments import Segment
from pgoutput.values import base_types
from pgoutput.wire import shown_text

RowChange: TypeAlias = messages.Insert | messages.Update | messages.Delete | messages.Truncate


class Commit(msgspec.Struct, frozen=True):
    """The commit of a transaction; LSN and time as on the wire."""

    xid: int
    lsn: int
    time: int
    rolled_back: frozenset[int] = frozenset()
    """Xids of subtransactions that were rolled back while they were streamed."""


class Shape(msgspec.Struct, frozen=True, eq=False):
    """A relation, as it is from a Relation message to the next."""

    relation: Relation
    """With domains replaced by their base types."""
    names: tuple[str, ...]
    """Its columns' names, fit to be shown."""
    types: tuple[int, ...]
    """Their types' OIDs."""
    keys: tuple[int, ...]
    """Places of the columns of the replica identity."""

    @property
    def places(self) -> range:
        """Places of all its columns."""
        return range(len(self.names))

    @property
    def namespace(self) -> str:
        """Its namespace, `pg_catalog` spelt out."""
        return shown_text(self.relation.namespace) or "pg_catalog"

    @property
    def name(self) -> str:
        """Its name, fit to be shown."""
        return shown_text(self.relation.name)


Wanted: TypeAlias = Callable[[Shape], bool]


class Changes(msgspec.Struct, frozen=True):
    """Changes, one row each; a truncate has one for each of its relations."""

    positions: list[int] = []
    commits: list[Commit] = []
    shapes: list[Shape] = []
    messages: list[RowChange] = []

    def __len__(self) -> int:
        return len(self.positions)


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
        segment: Segment,
        *,
        whole: bool,
        commits: Mapping[int, Commit],
        wanted: Wanted = lambda shape: True,
    ) -> None:
        metadata = segment.metadata
        self._segment = segment
        self._decoder = segment.decoder()
        self._commits = commits
        self._whole = whole
        self._wanted = wanted
        self._listed = {part.begin for part in metadata.parts}
        # What began before the segment is opened anew by its keyframe, and known by its xid.
        begun = [part for part in metadata.parts if part.begin < metadata.first_position]
        self._begins = {part.xid: part.begin for part in begun}
        self._shapes: dict[int, Shape | None] = {}
        self._current: Commit | None = None
        self._effects: Final[Mapping[type[messages.Message], Callable[..., None]]] = {
            messages.Begin: self._begin,
            messages.BeginPrepare: self._begin,
            messages.StreamStart: self._begin,
            messages.Commit: self._leave,
            messages.Prepare: self._leave,
            messages.StreamStop: self._leave,
            messages.Relation: self._relation,
        }

    def pick(self, positions: Sequence[int | None], data: Sequence[bytes]) -> Changes:
        """The changes among messages that follow those of the last call.

        Raises:
            CaptureError: A message cannot be read, or no server sends it there.
        """
        changes = Changes()
        for position, message in zip(positions, data, strict=True):
            try:
                if message[:1] not in _ROW_CHANGES:
                    self._follow(position, message)
                elif self._current is not None and position is not None:
                    self._take(changes, position, message, self._current)
            except DecodeError as error:
                raise self._segment.error_at(position, error) from None
        return changes

    def _take(self, changes: Changes, position: int, data: bytes, commit: Commit) -> None:
        """Add a change, or the changes of a truncate, unless it is rolled back or not wanted."""
        if data[0] == _TRUNCATE:
            message = self._decoder.decode(data)
            assert isinstance(message, messages.Truncate)
            oids: Sequence[int] = message.relation_oids
        else:
            at = 5 if self._decoder.in_stream else 1
            if len(data) < at + 4:
                self._decoder.decode(data)  # tells what is wrong
            oids = _OID.unpack_from(data, at)
            if self._shape(oids[0], data) is None:
                return
            message = self._decoder.decode(data)
        if message.xid in commit.rolled_back:  # type: ignore[attr-defined]
            return
        for oid in oids:
            shape = self._shape(oid, data)
            if shape is not None:
                fits(message, shape)
                changes.positions.append(position)
                changes.commits.append(commit)
                changes.shapes.append(shape)
                changes.messages.append(message)  # type: ignore[arg-type]

    def _follow(self, position: int | None, data: bytes) -> None:
        message = self._decoder.decode(data)
        effect = self._effects.get(type(message))
        if effect is not None:
            effect(message, position)

    def _begin(
        self, message: messages.Begin | messages.BeginPrepare | messages.StreamStart, position: int | None
    ) -> None:
        if (isinstance(message, messages.StreamStart) and not message.first_segment) or position is None:
            begin = self._begins.get(message.xid)
        else:
            begin = self._begins[message.xid] = position
        if begin in self._listed:
            self._current = self._commits.get(begin)
        elif self._whole and isinstance(message, messages.Begin):
            self._current = Commit(message.xid, message.final_lsn, message.commit_time)

    def _leave(self, message: messages.Message, position: int | None) -> None:
        self._current = None

    def _relation(self, message: Relation, position: int | None) -> None:
        self._shapes.pop(message.oid, None)

    def _shape(self, oid: int, data: bytes) -> Shape | None:
        """The relation; None if its changes are not wanted."""
        try:
            return self._shapes[oid]
        except KeyError:
            relation = self._decoder.relations.get(oid)
        if relation is None:
            text = f"no Relation message has come for the OID {oid}"
            raise StreamError.at(self._decoder.decode(data), text)
        shape = make_shape(relation, self._decoder.types)
        return self._shapes.setdefault(oid, shape if self._wanted(shape) else None)


def make_shape(relation: Relation, types: Mapping[int, messages.Type]) -> Shape:
    """The relation as changes refer to it.

    Args:
        relation: The Relation message.
        types: The Type messages that came before, by OID.
    """
    columns = relation.columns
    keys = [place for place, column in enumerate(columns) if column.flags & messages.ColumnFlag.KEY]
    names = tuple(shown_text(column.name) for column in columns)
    relation = base_types(relation, types)
    return Shape(relation, names, tuple(column.type_oid for column in relation.columns), tuple(keys))


_ROW_CHANGES: Final = frozenset(
    message.wire_tag for message in (messages.Insert, messages.Update, messages.Delete, messages.Truncate)
)
_TRUNCATE: Final = messages.Truncate.wire_tag[0]
_OID: Final = Struct(">I")


def fits(message: messages.Message, shape: Shape) -> None:
    """See that all tuples of a change have the relation's columns.

    Raises:
        StreamError: They do not.
    """
    width = len(shape.names)
    for field in _TUPLES[type(message)]:
        cells: TupleData | None = getattr(message, field)
        if cells is not None and len(cells) != width:
            text = f"{field} has {len(cells)} columns, but {shape.namespace}.{shape.name} has {width}"
            raise StreamError.at(message, text)


_TUPLES: Final[Mapping[type[messages.Message], tuple[str, ...]]] = {
    messages.Insert: ("new",),
    messages.Update: ("key", "old", "new"),
    messages.Delete: ("key", "old"),
    messages.Truncate: (),
}
