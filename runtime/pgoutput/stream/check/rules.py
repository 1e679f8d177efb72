"""The list of all rules, in the order in which each message is checked against the rules."""

from __future__ import annotations

from typing import Final

from pgoutput._rules import RULES as SPEC_RULES
from pgoutput.stream.check import envelopes, generated, relations, tuples

MESSAGE: Final = "message"
ENVELOPE: Final = "envelope"
XID_IN_BLOCKS: Final = "xid-in-blocks"

_BY_NAME: Final = {
    rule.name: rule for rule in (*generated.RULES, *envelopes.RULES, *relations.RULES, *tuples.RULES)
}

RULES: Final = tuple(_BY_NAME[name] for name in SPEC_RULES)
"""Rules that the stream of every PostgreSQL server obeys. Each rule has a legal and an illegal example."""
