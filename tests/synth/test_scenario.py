"""Scenarios: what is done in them, what they refuse, and the streams and the truth that follow."""

from __future__ import annotations

from typing import Any

import pytest

from pgoutput import messages as m
from pgoutput.errors import ScenarioError
from pgoutput.synth import Scenario


def test_a_savepoint_that_is_rolled_back_lets_others_have_its_rows() -> None:
    db = Scenario()
    t = db.table("public.t", id="int8 key", v="text")
    with db.transaction() as tx:
        tx.insert(t, id=1, v="a")
        tx.insert(t, id=2, v="a")
    one, other = db.transaction(), db.transaction()
    with one.savepoint() as point:
        point.update(t, id=1, v="lost")
        point.update(t, id=2, v="lost")
        point.rollback()
    other.update(t, id=1, v="b")
    one.commit()
    assert [row["v"] for row in db.rows(t)] == ["a", "a"]
    other.delete(t, id=2)
    other.commit()
    assert db.rows(t) == [{"id": "1", "v": "b"}]
    assert [done.tables["public.t"] for done in db.history()][-1] == db.rows(t)


def test_a_key_that_a_rolled_back_savepoint_had_is_free() -> None:
    db = Scenario()
    t = db.table("public.t", id="int8 key")
    one, other = db.transaction(), db.transaction()
    with one.savepoint() as point:
        point.insert(t, id=1)
        with pytest.raises(ScenarioError, match="a server would wait"):
            other.insert(t, id=1)
        point.rollback()
    other.insert(t, id=1)
    with pytest.raises(ScenarioError, match="a server would wait"):
        one.insert(t, id=1)


@pytest.mark.parametrize("options", [{"proto_version": 1}, {"streaming": "parallel"}])
def test_what_is_altered_by_another_node_is_told_though_its_rows_are_not(options: dict[str, Any]) -> None:
    db = Scenario(origin="none", logical_decoding_work_mem=0, **options)
    t = db.table("public.t", id="int8 key")
    for origin in (None, "node", None):
        with db.transaction(origin=origin) as tx:
            if origin is not None:
                tx.alter(t, add={"v": "text"})
            tx.insert(t, id=len(db.rows(t)))
    relations = [one for one in db.messages() if isinstance(one, m.Relation)]
    assert [len(one.columns) for one in relations] == [1, 2]


def test_what_others_altered_is_not_told_anew_behind_a_rollback() -> None:
    db = Scenario(streaming="on", logical_decoding_work_mem=0)
    t, u = db.table("public.t", id="int8 key"), db.table("public.u", id="int8 key")
    one, other = db.transaction(), db.transaction()
    one.insert(u, id=1)
    with db.transaction() as tx:
        tx.alter(t, add={"v": "text"})
    other.insert(t, id=1)
    one.rollback()
    other.insert(t, id=2)
    other.commit()
    behind = [type(one).__name__ for one in db.messages()][-6:]
    assert behind == ["StreamStop", "StreamAbort", "StreamStart", "Insert", "StreamStop", "StreamCommit"]
