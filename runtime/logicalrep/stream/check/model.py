"""Classes for the rules of a stream and for violations of a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from logicalrep._build import fitted
from logicalrep._roles import classes
from logicalrep._rules import RULES as SPEC_RULES, Breach
from logicalrep.messages import Message
from logicalrep.stream.check.options import CheckOptions
from logicalrep.stream.check.samples import TRANSACTION


class Violation(msgspec.Struct, frozen=True):
    """A rule that a stream violates, with the position of the violation."""

    rule: str
    """Name of the rule, one of `RULES`."""
    message: int
    """Number of the message, from 0. All messages and envelopes passed to the checker are counted."""
    byte: int
    """Byte offset of the invalid field in the message, or in the envelope for rules about envelopes."""
    name: str | None
    """Class name of the message, such as Insert; None if its tag is unknown."""
    field: str | None
    """Path of the invalid field, such as `relation_oid` or `new[2]`; None for the whole message."""
    because: str
    """Reason for the violation, starting with the names of the message and field."""

    @property
    def text(self) -> str:
        """The violation as one line of text."""
        return f"illegal at message {self.message}, byte {self.byte}, because {self.because}"


CheckMessage: TypeAlias = Callable[..., Breach | None]
"""Check function of a rule. Its arguments are the stream's state before the message and the message, with the
envelope between them if the rule is about envelopes. It returns None if the rule is obeyed."""

CheckerInput: TypeAlias = Message | bytes
"""An item of an example stream of a rule: a message or its bytes."""


_OPTIONS: Final = CheckOptions(streaming="on", two_phase=True)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that the stream of every PostgreSQL server obeys."""

    name: str
    """Name of the rule."""
    doc: str
    """The rule in words."""
    source: str
    """C function in PostgreSQL's source code that makes the server obey the rule."""
    on: tuple[type[Message], ...] = ()
    """Classes of the messages to which the rule applies; empty if the decoder checks the rule."""
    check: CheckMessage | None = None
    """Function that checks a message against the rule; None if the decoder checks the rule."""
    when: Callable[[CheckOptions], bool] | None = None
    """Returns whether the rule applies to a stream with these options; None if it always applies."""
    in_blocks: bool = False
    """Whether the rule applies only inside stream blocks."""
    envelope: bool = False
    """Whether the rule is about XLogData envelopes; if so, `on` lists the messages inside the envelope."""
    options: CheckOptions = _OPTIONS
    """Stream options of the examples `legal` and `illegal`."""
    legal: tuple[CheckerInput, ...]
    """Example of a stream that obeys the rule."""
    illegal: tuple[CheckerInput, ...]
    """Example of a stream that violates this rule once, and no other rule."""


def rule(
    name: str,
    *,
    illegal: tuple[CheckerInput, ...],
    legal: tuple[CheckerInput, ...] = TRANSACTION,
    options: CheckOptions = _OPTIONS,
    check: CheckMessage | None = None,
) -> Rule:
    """Return a rule of the spec with its examples.

    Args:
        name: Name of the rule in the spec.
        illegal: Example of a stream that violates this rule once, and no other rule.
        legal: Example of a stream that obeys the rule.
        options: Stream options of the examples.
        check: Function that checks a message; None to use the check that is generated from the spec.
    """
    if (spec := SPEC_RULES.get(name)) is None:
        raise LookupError(
            f"rule({name!r}, …) gives examples for a rule that spec/rules.yaml does not have: "
            "correct the name, or remove the call"
        )
    legal, illegal = (
        tuple(one if isinstance(one, bytes) else fitted(one, options.proto_version) for one in example)
        for example in (legal, illegal)
    )
    return Rule(
        name=name,
        doc=spec.doc,
        source=spec.source,
        on=classes(*spec.roles),
        check=check or spec.check,
        when=spec.when,
        in_blocks=spec.in_blocks,
        envelope=spec.envelope,
        options=options,
        legal=legal,
        illegal=illegal,
    )
