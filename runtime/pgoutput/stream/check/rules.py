"""All rules, in the order in which a message is held against them."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput.stream.check import blocks, envelopes, order, prepared, relations, rows, transactions, xids
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Rule

MESSAGE: Final = "message"
ENVELOPE: Final = "envelope"
XID_IN_BLOCKS: Final = "xid-in-blocks"

RULES: Final = (
    Rule(
        name=MESSAGE,
        doc="What comes is a message of the protocol version, and all of one.",
        source="logicalrep_write_begin and its neighbours",
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), b"B\0"),
    ),
    Rule(
        name=ENVELOPE,
        doc="What a walsender sends is XLogData, a keepalive, or what PostgreSQL 19 answers to a status "
        "request.",
        source="WalSndPrepareWrite, WalSndKeepalive",
        legal=(m.PrimaryKeepalive(1_000, 0, False),),
        illegal=(m.StandbyStatusUpdate(1_000, 1_000, 1_000, 0, False),),
    ),
    Rule(
        name=XID_IN_BLOCKS,
        doc="Changes, relations, types and logical messages have an xid in stream blocks, and nowhere else.",
        source="logicalrep_write_insert and its neighbours (TransactionIdIsValid(xid))",
        legal=(*s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK[:-1], s.INSERT, s.STOP, s.STREAM_COMMIT),
    ),
    *envelopes.RULES,
    *transactions.RULES,
    *blocks.RULES,
    *xids.RULES,
    *prepared.RULES,
    *order.RULES,
    *relations.RULES,
    *rows.RULES,
)
"""What every server keeps to. Each row has a stream that keeps it, and one that breaks it alone."""
