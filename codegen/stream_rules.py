"""The spec's rules of a stream, compiled to the parts of a check function in Python and in JavaScript."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from codegen import model
from codegen.expressions import (
    Code,
    Mistake,
    Scope,
    Type,
    condition,
    embedded,
    meanings,
    names,
    placeholders,
    show,
)
from codegen.model import Rule, Spec
from codegen.resolve import MessageView, resolve
from codegen.roles import MEANINGS
from codegen.yamlfile import Place, unknown


class Local(NamedTuple):
    """A local variable of a check function, with its value; the value is empty in a language without it."""

    name: str
    python: str
    javascript: str


class Case(NamedTuple):
    """A case in which a message violates the rule: condition (None: always), path of the field, reason."""

    when: Code | None
    path: Code
    text: Code


class Check(NamedTuple):
    """The parts of the function that checks a message against a rule."""

    meanings: tuple[str, ...]
    """The meanings of the message's fields that the function reads."""
    variables: tuple[Local, ...]
    unless: tuple[Code, ...]
    each: Code | None
    """List whose elements are checked one by one, as the variable `relation`; None without such a list."""
    preceding: bool
    """Whether the cases use the preceding elements of the list."""
    cases: tuple[Case, ...]


OPTIONS: Scope = {
    "version": Code("options.proto_version", "version", Type("version")),
    "streaming": Code("options.streaming", "streaming", Type("option")),
    "two_phase": Code("options.two_phase", "twoPhase", Type("bool")),
    "binary": Code("options.binary", "binary", Type("bool")),
    "messages": Code("options.messages", "messages", Type("bool")),
}
"""The words of `needs`: what a client requested."""

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
    "message": Code("message", "message", Type("message")),
    "transactional": Code("is_transactional(message)", "isTransactional(message)", Type("bool")),
}
"""The words for the message, and for the state of the stream before the message."""

_OPEN: Scope = {
    "opener": Code("None if open_ is None else open_.opener", "state.open?.opener", Type("opener")),
    "block": Code("None if open_ is None else open_.streamed", "state.open?.streamed", Type("transaction")),
    "changes": Code("0 if open_ is None else open_.changes", "state.open?.changes", Type("count")),
    "messages": Code("0 if open_ is None else open_.messages", "state.open?.messages", Type("count")),
}
"""The words for what the open transaction or stream block has; a check function has a variable for each."""

WORDS = (*_STATE, *_OPEN, "open", "transaction", "prepare")
"""All words for the message and the state."""


def needs(rule: Rule) -> Code | None:
    """Compile the condition for a stream's options; None if the rule holds with all options.

    Raises:
        Mistake: The condition cannot be compiled.
    """
    return None if rule.needs is None else condition(rule.needs, OPTIONS)


def checks(spec: Spec) -> dict[str, Check]:
    """Return the compiled check of each rule that has cases, by name.

    Raises:
        Mistake: A rule cannot be compiled; `mistakes` says where.
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
            parts.append(((*at, "text"), partial(show, case.text, builder.scope)))
        parts.append(((*place, "like"), builder.check))
        for where, compile_ in parts:
            try:
                compile_()
            except Mistake as mistake:
                yield where, f"{name}: {mistake}"


class _Builder:
    """Compiles the cases of one rule.

    Attributes:
        scope: The words that the expressions of the rule can use, and the names of the message's fields: the
            key of such a name is the field's meaning with `:name`.

    Args:
        spec: The spec that contains the rule.
        rule: The rule. If it is `like` another rule, it has that rule's cases.
        messages: All messages of the output plugin, with the fields of all versions.
    """

    def __init__(self, spec: Spec, rule: Rule, messages: Sequence[MessageView]) -> None:
        self._model = spec.rules.get(rule.like or "", rule)
        self._rule = rule
        self._messages = [message for message in messages if message.role in rule.roles]
        self._meanings = meanings(rule.roles)
        self._have_xid = {"xid" in MEANINGS[role].required for role in rule.roles}
        self._uses = self._count_uses()
        self._variables: list[Local] = []
        self.scope = self._words()

    def check(self) -> Check:
        """Compile all parts of the check function; raise Mistake if a part cannot be compiled."""
        return Check(
            meanings=tuple(name for name in self._meanings if name in self._uses and name not in _STATE),
            variables=tuple(self._variables),
            unless=tuple(self.unless()),
            each=self._field("relations") if self._rule.each else None,
            preceding="preceding" in self._uses,
            cases=tuple(
                Case(self.when(case), self.path(case.at), show(case.text, self.scope))
                for case in self._model.cases
            ),
        )

    def unless(self) -> list[Code]:
        """Compile the conditions under which the rule is obeyed: its own, and that of the rule it is like."""
        given = dict.fromkeys((self._rule.unless, self._model.unless))
        return [condition(one, self.scope) for one in given if one is not None]

    def when(self, case: model.Case) -> Code | None:
        """Compile the condition of a case; None if the case has no condition."""
        return None if case.when is None else condition(case.when, self.scope)

    def path(self, at: str) -> Code:
        """Compile the path of an invalid field, given by its meaning, such as `lsn` or `relations.count`."""
        if at == "tag":
            return Code('"tag"', '"tag"')
        name, _, below = at.partition(".")
        listed = self._rule.each is not None and name == "relation"
        key = "relations:name" if listed else f"{name}:name"
        if key not in self.scope or below not in ("", "count"):
            known = [one.removesuffix(":name") for one in self.scope if one.endswith(":name")]
            raise Mistake(unknown("field", at, ["tag", *known]))
        field = self.scope[key]
        if listed:
            return Code(f'f"{embedded(field.python)}[{{i}}]"', f"`${{{field.javascript}}}[${{i}}]`")
        if below:
            text = f"{embedded(field.python)}.{below}"
            return Code(f'{"f" * ("{" in text)}"{text}"', f"`${{{field.javascript}}}.{below}`")
        return field

    def _count_uses(self) -> Counter[str]:
        """Return how often each word is used: by each place in conditions, and once by all texts together."""
        conditions = [self._rule.unless, *(case.when for case in self._model.cases)]
        if self._model is not self._rule:
            conditions.append(self._model.unless)
        asked = Counter(word for text in conditions if text is not None for word in names(text))
        shown = (names(one) for case in self._model.cases for one in placeholders(case.text))
        uses = Counter(dict.fromkeys(itertools.chain(*shown), 1) | asked)
        if self._rule.each is not None:
            uses["relations"] += 1
        if self._have_xid == {True} and "transaction" in uses:
            uses["xid"] += 1
        if "prepare" in uses:
            uses["gid"] += 1
        return uses

    def _words(self) -> Scope:
        uses = self._uses
        scope: dict[str, Code] = dict(_STATE)
        in_open: dict[str, Code] = dict(_OPEN)
        if self._have_xid == {False}:
            in_open["transaction"] = _OPEN["block"]
        if "message" in uses:
            self._variables.append(Local("role", "ROLES[type(message)]", ""))
        for name in self._meanings:
            field = scope.get(name) or self._field(name)
            if uses[name] > 1:
                self._variables.append(Local(name, field.python, ""))
                field = field._replace(python=name)
            scope[name], scope[f"{name}:name"] = field, self._field_name(name)
        scope["open"] = Code("state.open", "state.open", Type("opened"))
        if uses["open"] > 1 or uses.keys() & in_open.keys():
            self._variables.append(Local("open_", "state.open", ""))
            scope["open"] = scope["open"]._replace(python="open_")
        for word, code in in_open.items():
            scope[word] = self._variable(word, code)
        if self._have_xid == {True}:
            xid = scope["xid"]
            by_xid = Code(
                f"state.streamed.get({xid.python})",
                f"state.streamed.get({xid.javascript})",
                Type("transaction"),
            )
            scope["transaction"] = self._variable("transaction", by_xid)
        if "gid" in scope:
            gid = scope["gid"]
            by_gid = Code(
                f"state.prepare_of({gid.python})", f"state.prepareOf({gid.javascript})", Type("prepare")
            )
            scope["prepare"] = self._variable("prepare", by_gid)
        if self._rule.each:
            scope["relation"] = Code("relation", "relation", Type("oid"))
            scope["preceding"] = Code("preceding", "preceding", Type("set", "oid"))
        return scope

    def _variable(self, word: str, code: Code) -> Code:
        if word in self._uses:
            self._variables.append(Local(word, code.python, code.javascript))
        return Code(word, word, code.type)

    def _names(self, of: str) -> set[str | None]:
        """Return the names of the fields with this meaning; with None if a message has no such field."""
        return {
            next((field.name for field in message.members if field.means == of), None)
            for message in self._messages
        }

    def _field(self, of: str) -> Code:
        """Return the code that reads the message's field with this meaning; None if the message has none."""
        kind = self._meanings[of]
        match [*self._names(of)]:
            case [str(name)]:
                return Code(f"message.{name}", of, kind)
        return Code(f"meaning_of(message, '{of}')", of, kind)

    def _field_name(self, of: str) -> Code:
        """Return the code for the name of the message's field with this meaning; `tag` if it has none."""
        javascript = f'named(message, "{of}")'
        match [*self._names(of)]:
            case [str(name)]:
                return Code(f'"{name}"', javascript)
        return Code(f"_name(message, '{of}')", javascript)
