"""The list of all rules, in the order in which each message is checked against the rules."""

from __future__ import annotations

from typing import Final

from logicalrep._rules import RULES as SPEC_RULES
from logicalrep.stream.check import envelopes, examples, relations, tuples
from logicalrep.stream.check.model import Rule

MESSAGE: Final = "message"
ENVELOPE: Final = "envelope"
XID_IN_BLOCKS: Final = "xid-in-blocks"

_BY_NAME: Final = {
    rule.name: rule for rule in (*examples.RULES, *envelopes.RULES, *relations.RULES, *tuples.RULES)
}


def find_rule(name: str) -> Rule:
    """Return a rule of the spec with its examples.

    Raises:
        LookupError: The rule has no example.
    """
    if name not in _BY_NAME:
        raise LookupError(
            f"spec/rules.yaml has the rule {name}, which has no example: "
            f'write rule("{name}", illegal=…) in {examples.__file__}'
        )
    return _BY_NAME[name]


RULES: Final = tuple(map(find_rule, SPEC_RULES))
"""Rules that the stream of every PostgreSQL server obeys. Each rule has a legal and an illegal example."""
