"""The state diagrams in the reference allow messages in the order of real servers, and in no other order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from codegen.load import load
from codegen.resolve import resolve
from codegen.states import OUTSIDE, Diagram, diagram
from logicalrep import messages
from tests.codec import corpus
from tests.codegen.spec_copy import ROOT

SPEC = load(ROOT / "spec")
OPENERS = {"Begin", "BeginPrepare", "StreamStart"}

Step = tuple[str, bool | None]
"""Name of a message, and whether the message is transactional (None except for logical messages)."""


@cache
def diagram_of(version: int) -> Diagram:
    return diagram(resolve(SPEC, SPEC.protocols["pgoutput"], version))


def first_refused(version: int, steps: Sequence[Step]) -> int | None:
    """Return the index of the first of `steps` that the version's diagram does not allow; None if all are."""
    state, before = OUTSIDE, ""
    for index, (name, transactional) in enumerate(steps):
        targets = [
            one.target
            for one in diagram_of(version).transitions
            if (one.source, one.message) == (state, name)
            and (
                transactional is None or one.condition == ("" if transactional else "not ") + "transactional"
            )
            and (not one.condition.startswith("right after") or before in OPENERS)
        ]
        if not targets:
            return index
        (state,), before = targets, name
    return None


def step(message: messages.Message) -> Step:
    transactional = None
    if isinstance(message, messages.LogicalMessage):
        transactional = bool(message.flags & messages.MessageFlag.TRANSACTIONAL)
    return type(message).__name__, transactional


@pytest.mark.parametrize("name", corpus.CAPTURES)
def test_the_diagram_allows_every_captured_stream(name: str) -> None:
    header, _, samples = corpus.read(name)
    # A slot with its two_phase flag set also gets the messages of version 3 in earlier versions.
    version = max([header.proto_version, *(sample.version for sample in samples)])
    steps = [step(sample.message) for sample in samples]
    assert samples
    assert first_refused(version, steps) is None


def test_the_captures_contain_nearly_every_transition() -> None:
    needed = {(one.source, one.message, one.target) for one in diagram_of(4).transitions}
    seen = set()
    for name in corpus.CAPTURES:
        state = OUTSIDE
        for sample in corpus.read(name)[2]:
            kind, _ = step(sample.message)
            (after,) = {
                one.target for one in diagram_of(4).transitions if (one.source, one.message) == (state, kind)
            }
            seen.add((state, kind, after))
            state = after
    rare = {"Delete", "Truncate", "LogicalMessage", "Type"}
    assert needed - seen == {("prepare", name, "prepare") for name in rare}


@pytest.mark.parametrize(
    ("version", "text", "index"),
    [
        (1, "Begin Relation Insert Commit Begin Commit", None),
        (1, "Begin Origin Type Relation Update Delete Truncate Commit", None),
        (1, "Begin Relation Origin", 2),
        (1, "Begin Begin", 1),
        (1, "Commit", 0),
        (1, "Insert", 0),
        (1, "Relation", 0),
        (1, "Begin Commit StreamStart", 2),
        (2, "StreamStart Origin Insert StreamStop StreamStart StreamStop StreamAbort StreamCommit", None),
        (2, "StreamStart Begin", 1),
        (2, "StreamStart StreamCommit", 1),
        (2, "StreamStart Commit", 1),
        (2, "Begin StreamStop", 1),
        (2, "BeginPrepare", 0),
        (3, "BeginPrepare Insert Prepare CommitPrepared RollbackPrepared StreamPrepare", None),
        (3, "BeginPrepare Commit", 1),
        (3, "Begin Prepare", 1),
        (3, "BeginPrepare CommitPrepared", 1),
    ],
)
def test_the_diagram_refuses_other_orders(version: int, text: str, index: int | None) -> None:
    assert first_refused(version, [(name, None) for name in text.split()]) == index


@pytest.mark.parametrize(("transactional", "inside"), [(True, None), (False, 1)])
def test_a_logical_message_is_inside_a_transaction_if_it_is_transactional(
    transactional: bool, inside: int | None
) -> None:
    message = ("LogicalMessage", transactional)
    assert first_refused(1, [("Begin", None), message, ("Commit", None)]) == inside
    assert first_refused(1, [message]) == (0 if transactional else None)


def test_diagram_and_table_of_version_1() -> None:
    whole = diagram_of(1)
    assert [*whole.mermaid] == [
        "stateDiagram-v2",
        "    outside: Outside transactions",
        "    transaction: In a transaction",
        "    [*] --> outside",
        "    outside --> transaction: Begin",
        "    outside --> outside: Message (not transactional)",
        "    transaction --> transaction: Message (transactional), Origin, Relation, Type,<br/>"
        "Insert, Update, Delete, Truncate",
        "    transaction --> outside: Commit",
    ]
    outside, inside = "Outside transactions", "In a transaction"
    assert [*whole.rows] == [
        (outside, "Begin", "", inside),
        (outside, "Message", "not transactional", outside),
        (inside, "Message", "transactional", inside),
        (inside, "Commit", "", outside),
        (inside, "Origin", "right after the first message of its transaction", inside),
        (inside, "Relation, Type, Insert, Update, Delete, Truncate", "", inside),
    ]
