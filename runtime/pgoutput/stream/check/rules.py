"""The list of all rules, in the order in which each message is checked against the rules."""

from __future__ import annotations

from typing import Final

import msgspec

from pgoutput import messages as m
from pgoutput._build import fitted
from pgoutput.stream.check import (
    envelopes,
    lsn_order,
    relations,
    stream_blocks,
    transactions,
    tuples,
    two_phase,
    xids,
)
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Rule

MESSAGE: Final = "message"
ENVELOPE: Final = "envelope"
XID_IN_BLOCKS: Final = "xid-in-blocks"


def _fitted(rule: Rule) -> Rule:
    """Return a copy of a rule whose example messages have all fields of the rule's protocol version."""
    legal, illegal = (
        tuple(one if isinstance(one, bytes) else fitted(one, rule.options.proto_version) for one in example)
        for example in (rule.legal, rule.illegal)
    )
    return msgspec.structs.replace(rule, legal=legal, illegal=illegal)


_RULES: Final = (
    Rule(
        name=MESSAGE,
        doc="Every message is complete and defined in the protocol version.",
        source="logicalrep_write_begin and its neighbours",
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), b"B\0"),
    ),
    Rule(
        name=ENVELOPE,
        doc="A walsender sends XLogData, keepalives, and from PostgreSQL 19 on replies to status requests.",
        source="WalSndPrepareWrite, WalSndKeepalive",
        legal=(m.PrimaryKeepalive(1_000, 0, False),),
        illegal=(m.StandbyStatusUpdate(1_000, 1_000, 1_000, 0, False),),
    ),
    Rule(
        name=XID_IN_BLOCKS,
        doc="Changes, relations, types and logical messages have an xid inside stream blocks and only there.",
        source="logicalrep_write_insert and its neighbours (TransactionIdIsValid(xid))",
        legal=(*s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK[:-1], s.INSERT, s.STOP, s.STREAM_COMMIT),
    ),
    *envelopes.RULES,
    *transactions.RULES,
    *stream_blocks.RULES,
    *xids.RULES,
    *two_phase.RULES,
    *lsn_order.RULES,
    *relations.RULES,
    *tuples.RULES,
)

RULES: Final = tuple(map(_fitted, _RULES))
"""Rules that the stream of every PostgreSQL server obeys. Each rule has a legal and an illegal example."""
