"""Workloads send every pair of successive messages that real servers send."""

from __future__ import annotations

import pytest

from tests.synth.pairs import Group, captured, made

FEW = (10, 14, 18)
"""Servers whose groups with the most kinds of messages are tested always; others are tested nightly."""


def is_quick(group: Group) -> bool:
    return group.server == FEW[0] or (group.server in FEW and group.options.messages)


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, id=str(group), marks=[] if is_quick(group) else [pytest.mark.nightly])
        for group in captured()
    ],
)
def test_no_pair_is_sent_only_by_real_servers(group: Group) -> None:
    assert captured()[group] - made(group) == set()
