"""The vocabulary of roles and meanings: what a message does in a stream, and what a field tells about it.

The runtime follows roles and meanings instead of message names, so that it understands a new message whose
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


class Meanings(NamedTuple):
    """The meanings that fields of a message with one role must have (`required`) or may have (`optional`)."""

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
"""For each role, the meanings that fields of such a message must have, and those that they may have."""

SINGLE: tuple[Role, ...] = ("relation", "type")
"""Roles that one message has in all versions, because schemas and recordings keep objects of its class."""
