"""Rules that a spec must satisfy beyond the types of its entries. Checking stops at the first violation.

A rule is a function that yields problems, each as a place in the spec and a description. The rules run in the
order of `RULES`, so that a rule may rely on earlier rules.
"""

from __future__ import annotations

from codegen import stream_rules
from codegen.model import Spec
from codegen.rules import fields, gates, names, plain, roles, stream, vocabulary
from codegen.rules.common import Rule

RULES: tuple[Rule, ...] = (
    vocabulary.protocols,
    plain.words,
    gates.readable,
    gates.versions_in_order,
    names.styles,
    names.unique,
    names.summaries,
    vocabulary.types_of_tables,
    vocabulary.oids,
    vocabulary.likes,
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
    roles.roles,
    roles.meanings,
    roles.tuple_tags,
    roles.companions,
    roles.contexts,
    stream.keys,
    stream_rules.mistakes,
)

PLAIN_RULES: tuple[Rule, ...] = (
    plain.sections,
    plain.keys,
    names.styles,
    names.unique,
    names.summaries,
    vocabulary.types_of_tables,
    vocabulary.scalars,
    vocabulary.enums_and_flags,
    names.message_tags,
    fields.forms,
    plain.structs,
    fields.types,
    plain.conditions,
    fields.order,
)
"""Rules of a spec without the section `versions`, in the order in which they run."""


def check(spec: Spec) -> None:
    """Check the spec against all rules, and raise the first problem as an error with file and line.

    Raises:
        SpecError: The spec violates a rule.
    """
    for rule in PLAIN_RULES if spec.plain else RULES:
        _raise_first(rule, spec)


def check_used(spec: Spec) -> None:
    """Check that each type that the spec defines is the type of a field.

    Call this after the comparison with the lock file. If the type of a released field was changed, the
    comparison reports the field, which is the cause. This function would only report the unused old type.

    Raises:
        SpecError: The spec defines a type that no field has.
    """
    _raise_first(vocabulary.used, spec)


def _raise_first(rule: Rule, spec: Spec) -> None:
    for place, text in rule(spec):
        raise spec.error(place, text)
