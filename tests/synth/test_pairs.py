"""Workloads send every pair of successive messages that real servers send, and others that they can send."""

from __future__ import annotations

import pytest

from tests.synth.pairs import PERMITTED, Group, captured, made, permitting

FEW = (10, 14, 18)
"""Servers whose groups with the most kinds of messages are tested always; others are tested nightly."""


def is_quick(group: Group) -> bool:
    return group.server == FEW[0] or (group.server in FEW and group.options.messages)


each = pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, id=str(group), marks=[] if is_quick(group) else [pytest.mark.nightly])
        for group in captured()
    ],
)


@each
def test_workloads_send_all_pairs_of_real_servers_and_others_that_these_can_send(group: Group) -> None:
    pairs = made(group)
    assert captured()[group] - pairs == set()
    assert {pair for pair in pairs if not permitting(pair)} == set()


def test_the_captures_show_each_permission_and_no_other_pair() -> None:
    real = [permitting(pair) for pair in set().union(*captured().values())]
    assert [] not in real
    assert {name for names in real for name in names} == PERMITTED.keys()
    assert permitting(("Begin", "StreamCommit")) == permitting(("Relation", "Commit")) == []
