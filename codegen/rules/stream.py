"""Checks of the keys of the spec's rules of a stream. `codegen.stream_rules` checks their expressions."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.expressions import names
from codegen.model import Spec
from codegen.rules.common import Problem
from codegen.yamlfile import unknown

_WITH_ROLES = ("envelope", "in_blocks", "needs", "each", "unless")
_NOT_IN_PAGE = {"binary", "messages"}
"""Options of a stream that the protocol explorer does not know."""


def keys(spec: Spec) -> Iterator[Problem]:
    """Check that the keys of each rule fit together, such as `roles` with `cases` or `command_line`."""
    with_cases = [name for name, rule in spec.rules.items() if rule.cases]
    for name, rule in spec.rules.items():
        place = ("rules", name)
        given = [key for key in ("cases", "like", "command_line") if getattr(rule, key)]
        if rule.like is not None and rule.like not in with_cases:
            yield (*place, "like"), f"{name}: {unknown('rule', rule.like, with_cases)}"
        elif rule.roles and given not in (["cases"], ["like"], ["command_line"], ["cases", "command_line"]):
            yield place, f"{name}: a rule with `roles` has `cases`, `like` or `command_line`"
        elif not rule.roles and (extra := [*given, *(key for key in _WITH_ROLES if getattr(rule, key))]):
            yield (*place, extra[0]), f"{name}: a rule that the decoder checks has no `{extra[0]}`"
        elif rule.each and (others := [role for role in rule.roles if role != "truncate"]):
            yield (*place, "each"), f"{name}: messages with the role `{others[0]}` have no `{rule.each}`"
        elif rule.envelope and rule.cases:
            yield (
                (*place, "envelope"),
                f"{name}: a rule about envelopes has no `cases`: Python code checks it",
            )
        elif not rule.command_line and (unknown_options := _NOT_IN_PAGE & {*names(rule.needs or "")}):
            text = f"the protocol explorer does not know the option `{min(unknown_options)}`"
            yield (*place, "needs"), f"{name}: {text}: add `command_line`"
        for i, case in enumerate(rule.cases[:-1]):
            if case.when is None:
                yield (*place, "cases", i), f"{name}: only the last case has no `when`"
