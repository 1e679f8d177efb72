"""The vocabulary of roles (what a message does in a stream) and meanings (what a field is about).

The runtime uses roles and meanings instead of message names, so that it understands a new message whose
role is known. `spec/README.md` explains the words.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Role = Literal[
    "begin",
    "begin_prepare",
    "commit",
    "prepare",
    "open_block",
    "close_block",
    "commit_streamed",
    "prepare_streamed",
    "abort_streamed",
    "commit_prepared",
    "rollback_prepared",
    "insert",
    "update",
    "delete",
    "truncate",
    "relation",
    "type",
    "origin",
    "payload",
]
"""What a message does in a stream."""

Meaning = Literal[
    "xid",
    "subxid",
    "gid",
    "lsn",
    "end_lsn",
    "time",
    "prepare_end_lsn",
    "prepare_time",
    "first_block",
    "relation",
    "relations",
    "new",
    "old",
    "key",
    "oid",
    "name",
    "transactional",
]
"""What a field tells about the transaction, row or relation of its message."""


Sort = Literal["xid", "oid", "lsn", "timestamp", "bool", "text", "tuple", "flags"]
"""A kind of field types. Each meaning needs a field whose type is of a certain kind (`SORTS`)."""

SORTS: dict[Meaning, Sort] = {
    "xid": "xid",
    "subxid": "xid",
    "gid": "text",
    "lsn": "lsn",
    "end_lsn": "lsn",
    "time": "timestamp",
    "prepare_end_lsn": "lsn",
    "prepare_time": "timestamp",
    "first_block": "bool",
    "relation": "oid",
    "relations": "oid",
    "new": "tuple",
    "old": "tuple",
    "key": "tuple",
    "oid": "oid",
    "name": "text",
    "transactional": "flags",
}
"""By meaning: the kind of type that a field with this meaning must have."""

SAID: tuple[Sort, ...] = ("xid", "oid", "lsn", "timestamp", "tuple", "flags")
"""Kinds of types whose fields must have a meaning, or `none` with a reason. Without the meaning, the runtime
could apply rows that were rolled back, or apply rows to the wrong relation."""

C_TYPES: dict[str, Sort] = {
    "TransactionId": "xid", "Oid": "oid", "XLogRecPtr": "lsn", "TimestampTz": "timestamp",
}  # fmt: skip
"""The kind of type of a scalar, by PostgreSQL's C type."""


class Meanings(NamedTuple):
    """The meanings, such as `xid`, that fields of the messages with one role must have or may have."""

    required: tuple[Meaning, ...] = ()
    optional: tuple[Meaning, ...] = ()


_END: tuple[Meaning, ...] = ("lsn", "end_lsn", "time")
_PREPARED: tuple[Meaning, ...] = ("xid", "gid", *_END)

MEANINGS: dict[Role, Meanings] = {
    "begin": Meanings(("xid", "lsn", "time")),
    "begin_prepare": Meanings(_PREPARED),
    "commit": Meanings(_END, ("xid",)),
    "prepare": Meanings(_PREPARED),
    "open_block": Meanings(("xid", "first_block")),
    "close_block": Meanings(),
    "commit_streamed": Meanings(("xid", *_END)),
    "prepare_streamed": Meanings(_PREPARED),
    "abort_streamed": Meanings(("xid", "subxid"), ("lsn", "time")),
    "commit_prepared": Meanings(_PREPARED),
    "rollback_prepared": Meanings(
        ("xid", "gid", "end_lsn", "time"), ("lsn", "prepare_end_lsn", "prepare_time")
    ),
    "insert": Meanings(("relation", "new"), ("subxid",)),
    "update": Meanings(("relation", "new"), ("subxid", "old", "key")),
    "delete": Meanings(("relation",), ("subxid", "old", "key")),
    "truncate": Meanings(("relations",), ("subxid",)),
    "relation": Meanings(("oid", "name"), ("subxid",)),
    "type": Meanings(("oid", "name"), ("subxid",)),
    "origin": Meanings(("name",), ("lsn",)),
    "payload": Meanings((), ("xid", "subxid", "lsn", "transactional")),
}
"""By role: the meanings that fields of a message must have, and those that they may have."""

SINGLE: tuple[Role, ...] = ("relation", "type")
"""Roles that only one message of all versions may have: schemas and recordings keep objects of its class."""

REPEATED: tuple[Role, ...] = ("insert", "update", "delete", "truncate", "payload")
"""Roles that several messages of a version can have. Each other role belongs to one message of a version."""

IN_BLOCKS: tuple[Role, ...] = ("insert", "update", "delete", "truncate", "relation", "type")
"""Roles of messages that need a `subxid` in stream blocks: without it, a change would stay after the rollback
of its transaction or savepoint."""

ONE_OF: dict[Role, tuple[Meaning, ...]] = {"update": ("old", "key"), "delete": ("old", "key")}
"""Roles that need at least one of these meanings, to find the row that is changed."""

COMPANIONS: dict[Role, tuple[Role, ...]] = {
    "begin": ("commit",),
    "commit": ("begin",),
    "open_block": ("close_block", "commit_streamed", "abort_streamed"),
    "close_block": ("open_block",),
    "commit_streamed": ("open_block",),
    "abort_streamed": ("open_block",),
    "begin_prepare": ("prepare", "commit_prepared"),
    "prepare": ("begin_prepare",),
    "prepare_streamed": ("open_block", "commit_prepared"),
    "commit_prepared": ("begin_prepare",),
    "rollback_prepared": ("begin_prepare",),
    "insert": ("relation",),
    "update": ("relation",),
    "delete": ("relation",),
    "truncate": ("relation",),
}
"""By role: the roles that a version with this role must also have. With `begin` it must have `commit`."""
