"""What a spec must fulfil beyond its types. The first rule that is broken ends the run.

Each rule is a generator of problems: where it is, and what is wrong. They run in this order, so that a
rule may rely on those before it.
"""

from __future__ import annotations

from typing import Protocol

from codegen.model import Spec
from codegen.rules import fields, gates, names, vocabulary
from codegen.rules.common import Rule
from codegen.yamlfile import Place, SpecError

RULES: tuple[Rule, ...] = (
    vocabulary.protocols,
    gates.readable,
    gates.versions_in_order,
    names.styles,
    names.unique,
    names.summaries,
    vocabulary.types_of_tables,
    vocabulary.oids,
    vocabulary.enums_and_flags,
    vocabulary.tuples,
    vocabulary.options_and_contexts,
    names.message_tags,
    gates.nested,
    fields.forms,
    fields.types,
    fields.conditions,
    fields.order,
    fields.choices,
    fields.structs,
    fields.columns,
)


class _Places(Protocol):
    def error(self, place: Place, text: str) -> SpecError: ...


def check(spec: Spec, places: _Places) -> None:
    """Raise the first problem of the spec.

    Raises:
        SpecError: a rule is broken.
    """
    for rule in RULES:
        for place, text in rule(spec):
            raise places.error(place, text)
