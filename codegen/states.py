"""State diagram of a protocol version, by the roles of messages: which message may come in which state."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from codegen.resolve import MessageView, View
from codegen.roles import Role

OUTSIDE = "outside"
"""The state in which no transaction and no stream block is open."""

STATES = {
    OUTSIDE: "Outside transactions",
    "transaction": "In a transaction",
    "prepare": "In a transaction that is being prepared",
    "block": "In a stream block",
}
"""Title of each state of a stream, by the state's name in `Transition`."""

_OPENED: dict[Role, str] = {"begin": "transaction", "begin_prepare": "prepare", "open_block": "block"}
_CLOSED: dict[Role, str] = {"commit": "transaction", "prepare": "prepare", "close_block": "block"}
_INSIDE: tuple[Role, ...] = ("insert", "update", "delete", "truncate", "relation", "type", "origin")
_CONDITIONS: dict[Role, str] = {
    "commit_streamed": "after a stream block of its xid",
    "prepare_streamed": "after a stream block of its xid",
    "abort_streamed": (
        "after a stream block of its xid; PostgreSQL 18.0 to 18.4 also roll back subtransactions without one"
    ),
    "commit_prepared": "after the prepare of its gid",
    "rollback_prepared": "also if its gid was prepared before the stream began",
    "origin": "right after the first message of its transaction",
}


_NO_BREAK = "\xa0"


class Transition(NamedTuple):
    """A message that may come in the state `source`, after which the state is `target`."""

    source: str
    message: str
    title: str
    target: str
    condition: str = ""
    """What must also be true when the message comes; empty if the state is enough."""


class Diagram(NamedTuple):
    """The transitions of one protocol version, ordered by source state as in `STATES`."""

    transitions: tuple[Transition, ...]

    @property
    def mermaid(self) -> Iterator[str]:
        """Yield the lines of the diagram's Mermaid source."""
        groups: dict[tuple[str, str], list[str]] = {}
        for one in self.transitions:
            title = one.title + (f" ({one.condition})" if "transactional" in one.condition else "")
            groups.setdefault((one.source, one.target), []).append(title.replace(" ", _NO_BREAK))
        yield "stateDiagram-v2"
        yield from (f"    {state}: {STATES[state]}" for state in dict.fromkeys(one[0] for one in groups))
        yield f"    [*] --> {OUTSIDE}"
        for (source, target), titles in groups.items():
            text = "<br/>".join(textwrap.wrap(", ".join(titles), 50)).replace(_NO_BREAK, " ")
            yield f"    {source} --> {target}: {text}"

    @property
    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the rows of the diagram as a table: state, titles of messages, condition, next state."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        for one in self.transitions:
            groups.setdefault((one.source, one.condition, one.target), []).append(one.title)
        for (source, condition, target), titles in groups.items():
            yield STATES[source], ", ".join(titles), condition, STATES[target]


def diagram(view: View) -> Diagram:
    """Return the state diagram of a protocol version."""
    roles = {message.role for message in view.messages}
    inside = [state for role, state in _OPENED.items() if role in roles]
    found = [one for message in view.messages for one in _transitions(message, inside)]
    return Diagram(tuple(sorted(found, key=lambda one: [*STATES].index(one.source))))


def _transitions(message: MessageView, inside: list[str]) -> Iterator[Transition]:
    role = message.role
    condition = "" if role is None else _CONDITIONS.get(role, "")

    def step(source: str, target: str, condition: str = condition) -> Transition:
        return Transition(source, message.name, message.title, target, condition)

    if role in _OPENED:
        yield step(OUTSIDE, _OPENED[role])
    elif role in _CLOSED:
        yield step(_CLOSED[role], OUTSIDE)
    elif role in _INSIDE:
        yield from (step(state, state) for state in inside)
    elif role == "payload":
        flagged = any(field.means == "transactional" for field in message.members)
        if flagged:
            yield step(OUTSIDE, OUTSIDE, "not transactional")
        yield from (step(state, state, "transactional" if flagged else "") for state in inside)
    else:
        yield step(OUTSIDE, OUTSIDE)
