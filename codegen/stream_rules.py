"""The spec's rules of a stream, compiled to the parts of a check function in Python and in JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from codegen import model
from codegen.expressions import (
    Code,
    Mistake,
    Scope,
    Type,
    condition,
    literal,
    meanings,
    names,
    placeholders,
    show,
)
from codegen.model import Rule, Spec
from codegen.resolve import MessageView, resolve
from codegen.roles import MEANINGS
from codegen.yamlfile import Place, unknown


class Case(NamedTuple):
    """A case in which a message violates the rule: condition (None: always), path of the field, reason."""

    when: Code | None
    path: Code
    text: Code


class Check(NamedTuple):
    """The parts of the function that checks a message against a rule."""

    variables: Mapping[str, Code]
    """The values of local variables, by name."""
    unless: tuple[Code, ...]
    each: bool
    """Whether the elements of the variable `relations` are checked one by one, as the variable `relation`."""
    preceding: bool
    """Whether the cases use the preceding elements of `relations`."""
    cases: tuple[Case, ...]


OPTIONS: Scope = {
    "version": Code("options.proto_version", "version", Type("version")),
    "streaming": Code("options.streaming", "streaming", Type("option")),
    "two_phase": Code("options.two_phase", "twoPhase", Type("bool")),
    "binary": Code("options.binary", "binary", Type("bool")),
    "messages": Code("options.messages", "messages", Type("bool")),
}
"""The words that `needs` can use: the options that a client requested."""

_STATE: Scope = {
    "streamed": Code("state.streamed", "state.streamed", Type("map", "xid", "transaction")),
    "prepared": Code("state.prepared", "state.prepared", Type("map", "gid", "transaction")),
    "top_xids": Code("state.top_xids", "state.topXids", Type("map", "xid", "xid")),
    "gid_by_xid": Code("state.gid_by_xid", "state.gidByXid", Type("map", "xid", "gid")),
    "finished_gids": Code("state.finished_gids", "state.finishedGids", Type("set", "gid")),
    "described": Code("state.relations", "state.relations", Type("set", "oid")),
    "ignored_oids": Code("state.ignored_oids", "state.ignored", Type("set", "oid")),
    "pending_types": Code("state.pending_types", "state.pendingTypes", Type("list", values="oid")),
    "late_prepare": Code("state.late_prepare", "state.latePrepare", Type("prepare")),
    "last_lsn": Code("state.last_lsn", "state.lastLsn", Type("lsn")),
    "message_lsn": Code("state.message_lsn", "state.messageLsn", Type("lsn")),
    "opener_missing": Code("state.opener_missing", "state.openerMissing", Type("bool")),
    "message": Code("role", "role", Type("message")),
    "option": Code("OPTIONS[type(message)]", "option", Type("option")),
    "open": Code("open_", "open_", Type("opened")),
    "transactional": Code("is_transactional(message)", "isTransactional(message)", Type("bool")),
}
"""Code of the words that expressions can use for the message and the stream's state before it, by word."""

_OPEN: Scope = {
    "opener": Code("None if open_ is None else open_.opener", "open_?.opener", Type("opener")),
    "block": Code("None if open_ is None else open_.streamed", "open_?.streamed", Type("transaction")),
    "changes": Code("0 if open_ is None else open_.changes", "open_?.changes", Type("count")),
    "messages": Code("0 if open_ is None else open_.messages", "open_?.messages", Type("count")),
}
"""Code of the words that expressions can use for the open transaction or stream block, by word."""

WORDS = (*_STATE, *_OPEN, "transaction", "prepare")
"""All words of expressions for the message and the state of the stream."""


def needs(rule: Rule) -> Code | None:
    """Compile `needs`, the rule's condition on the stream's options; None if the rule has no such condition.

    Raises:
        Mistake: The condition cannot be compiled.
    """
    return None if rule.needs is None else condition(rule.needs, OPTIONS)


def checks(spec: Spec) -> dict[str, Check]:
    """Return the compiled check of each rule that has cases, by name.

    Raises:
        Mistake: A rule cannot be compiled. `mistakes` yields its place in the spec.
    """
    messages = resolve(spec, spec.protocols["pgoutput"], None).messages
    rules = {name: rule for name, rule in spec.rules.items() if rule.cases or rule.like}
    return {name: _Builder(spec, rule, messages).check() for name, rule in rules.items()}


def mistakes(spec: Spec) -> Iterator[tuple[Place, str]]:
    """Yield what is wrong with the expressions, texts and fields of the rules, with places in the spec."""
    messages = resolve(spec, spec.protocols["pgoutput"], None).messages
    for name, rule in spec.rules.items():
        place: Place = ("rules", name)
        builder = _Builder(spec, rule, messages)
        parts: list[tuple[Place, Callable[[], object]]] = [
            ((*place, "needs"), partial(needs, rule)),
            ((*place, "unless"), builder.unless),
        ]
        for i, case in enumerate(rule.cases):
            at = (*place, "cases", i)
            parts.append(((*at, "when"), partial(builder.when, case)))
            parts.append(((*at, "at"), partial(builder.path, case.at)))
            parts.append(((*at, "text"), partial(builder.text, case)))
        parts.append(((*place, "like"), builder.check))
        for where, compile_ in parts:
            try:
                compile_()
            except Mistake as mistake:
                yield where, f"{name}: {mistake}"


class _Builder:
    """Compiles the cases of one rule.

    Args:
        spec: The spec that contains the rule.
        rule: The rule. If it is `like` another rule, it has that rule's cases.
        messages: All messages of the output plugin, with the fields of all versions.
    """

    def __init__(self, spec: Spec, rule: Rule, messages: Sequence[MessageView]) -> None:
        self._model = spec.rules.get(rule.like or "", rule)
        self._each = rule.each is not None
        self._unless = [one for one in dict.fromkeys((rule.unless, self._model.unless)) if one is not None]
        self._messages = [message for message in messages if message.role in rule.roles]
        self._meanings = meanings(rule.roles)
        self._required = dict.fromkeys(_OPEN, "open_") | {
            "open": "open_",
            "message": "role",
            "prepare": "gid",
        }
        """By word: the variable that the word requires."""
        self._values = self._variables({"xid" in MEANINGS[role].required for role in rule.roles})
        words = {name: code.named(name) for name, code in self._values.items() if code.type.name}
        self._scope: Scope = dict(_STATE) | words
        if self._each:
            oid = Code("relation", "relation", Type("oid"))
            self._scope |= {"relation": oid, "preceding": Code("preceding", "preceding", Type("set", "oid"))}

    def check(self) -> Check:
        """Compile all parts of the check function; raise Mistake if a part cannot be compiled."""
        texts = [one for case in self._model.cases for one in placeholders(case.text)]
        texts += [*self._unless, *(case.when for case in self._model.cases if case.when is not None)]
        used = {name for text in texts for name in names(text)} | ({"relations"} if self._each else set())
        used |= {self._required[word] for word in used & self._required.keys()}
        return Check(
            variables={name: code for name, code in self._values.items() if name in used},
            unless=tuple(self.unless()),
            each=self._each,
            preceding="preceding" in used,
            cases=tuple(
                Case(self.when(case), self.path(case.at), self.text(case)) for case in self._model.cases
            ),
        )

    def unless(self) -> list[Code]:
        """Compile the conditions under which the rule does not apply.

        These are the key `unless` of the rule itself, and `unless` of the rule that its key `like` names.
        """
        return [condition(one, self._scope) for one in self._unless]

    def when(self, case: model.Case) -> Code | None:
        """Compile the condition of a case; None if the case has no condition."""
        return None if case.when is None else condition(case.when, self._scope)

    def text(self, case: model.Case) -> Code:
        """Compile the text of a case: the reason why a message is invalid, with expressions in braces."""
        return show(case.text, self._scope, {of: self._field_name(of) for of in self._meanings})

    def path(self, at: str) -> Code:
        """Compile the path of an invalid field.

        `at` is `tag`, or the meaning of the field, such as `lsn`. `relations.count` stands for the number of
        elements of the list with the meaning `relations`, and `relation` for the element that is checked.
        """
        of = at.removesuffix(".count")
        if self._each and at == "relation":
            list_name = self._field_name("relations")
            return literal(f"{list_name.python}[{{i}}]", f"{list_name.javascript}[${{i}}]")
        if at == "tag":
            return literal("tag", "tag")
        if of not in self._meanings or (of != at and self._meanings[of].name != "list"):
            raise Mistake(unknown("field", at, ["tag", *self._meanings]))
        name = self._field_name(of)
        return literal(name.python + at[len(of) :], name.javascript + at[len(of) :])

    def _variables(self, have_xid: set[bool]) -> dict[str, Code]:
        """Return the code of each local variable that the rule's expressions can use, by name.

        Args:
            have_xid: Whether the messages to which the rule applies have an xid: {True} if all have one,
                {False} if none, and {True, False} if some. In the last case there is no variable
                `transaction`.
        """
        values = {of: self._value(of, kind) for of, kind in self._meanings.items() if of not in _STATE}
        values["role"] = Code("ROLES[type(message)]", "message.layout.role")
        values["open_"] = Code("state.open", "state.open")
        values |= _OPEN
        if have_xid == {True}:
            by_xid = "state.streamed.get(xid)"
            values["transaction"] = Code(by_xid, by_xid, Type("transaction"))
            self._required["transaction"] = "xid"
        elif have_xid == {False}:
            values["transaction"] = _OPEN["block"]
            self._required["transaction"] = "open_"
        if "gid" in values:
            values["prepare"] = Code("state.prepare_of(gid)", "state.prepareOf(gid)", Type("prepare"))
        return values

    def _name_of(self, of: str) -> str | None:
        """Return the name of the field with the meaning `of` (such as `lsn`), if all messages have the same.

        Return None if the names differ, or if a message has no such field.
        """
        names = {
            next((field.name for field in message.members if field.means == of), None)
            for message in self._messages
        }
        return names.pop() if len(names) == 1 else None

    def _value(self, of: str, kind: Type) -> Code:
        """Return code for the value of the field with the meaning `of`, such as `lsn`.

        The value has the type `kind`; it is None for a message without such a field.
        """
        name = self._name_of(of)
        return Code(
            f"message.{name}" if name else f"meaning_of(message, '{of}')", f"message.means.{of}", kind
        )

    def _field_name(self, of: str) -> Code:
        """Return code for a part of a text: the name of the field with the meaning `of`, such as `lsn`."""
        python = self._name_of(of) or f"{{_name(message, '{of}')}}"
        return Code(python, f'${{named(message, "{of}")}}')
