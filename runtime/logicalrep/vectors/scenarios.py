"""Scenarios whose streams are test vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from logicalrep.synth import Scenario

_LARGE: Final = "x" * 3000
"""A text that is stored out of line (TOAST): it is not sent by updates of other columns."""


def changes(db: Scenario) -> None:
    """Change tables of every replica identity, alter a table, and roll changes back."""
    db.enum("public.state")
    db.domain("public.amount", "numeric(12,2)")
    orders = db.table(
        "public.orders", id="int8 key", state="public.state", amount="public.amount", note="text"
    )
    indexed = db.table('public."Größen"', {"a b": "text", "id": "int4 key"}, replica_identity=["a b"])
    full = db.table("public.audit", what="text", details="text", replica_identity="full")
    log = db.table("public.log", line="text", at="timestamptz", replica_identity="nothing")
    with db.transaction() as tx:
        for number, note in enumerate(("", None, "naïve 🐘", _LARGE)):
            tx.insert(orders, id=number, state="open", amount=f"{number}.50", note=note)
        tx.insert(indexed, {"a b": "m", "id": 1})
        tx.insert(full, what="made", details=None)
        tx.insert(log, line="one", at="2026-01-02 03:04:05.678901+00")
    with db.transaction() as tx:
        tx.update(orders, {"id": 3}, state="paid")  # the large note is an unchanged value
        tx.update(orders, {"id": 2}, id=20)
        tx.update(indexed, {"id": 1}, **{"a b": "l"})
        tx.update(full, {"what": "made"}, details="2")
        tx.message("vectors", b"\x00\xff in the transaction")
    db.message("vectors", "outside")
    with db.transaction() as tx:
        tx.delete(orders, id=0)
        tx.delete(full, what="made")
        with tx.savepoint() as point:
            point.delete(orders, id=1)
            point.rollback()
        with tx.savepoint() as point:
            point.insert(full, what="kept", details="")
    with db.transaction() as tx:
        tx.insert(orders, id=99, state="open")
        tx.rollback()
    with db.transaction() as tx:
        tx.alter(orders, add={"email": "text"}, drop=["note"])
        tx.insert(orders, id=4, email="a@example.com")
    with db.transaction(origin="node_b", origin_lsn=0x1_0000_0010) as tx:
        tx.truncate(full, indexed, restart_identity=True)
        tx.insert(indexed, {"a b": "s", "id": 2})


def concurrent(db: Scenario) -> None:
    """Interleave transactions; roll back some transactions and some savepoints."""
    table = db.table("public.t", id="int4 key", v="text")
    first, second, third = (db.transaction() for _ in range(3))
    for number in range(3):
        first.insert(table, id=number, v="first")
        second.insert(table, id=10 + number, v="second")
        third.insert(table, id=20 + number, v="third")
    outer = first.savepoint()
    outer.update(table, {"id": 0}, v="outer")
    inner = outer.savepoint()
    inner.delete(table, id=1)
    inner.rollback()
    outer.release()
    aborted = second.savepoint()
    aborted.insert(table, id=19, v="undone")
    aborted.rollback()
    second.message("vectors", "second")
    third.rollback()
    second.commit()
    first.update(table, {"id": 0}, id=5)
    first.commit()


def prepared(db: Scenario) -> None:
    """Prepare transactions; commit one, roll one back, and leave one prepared."""
    table = db.table("public.t", id="int4 key", v="text")
    with db.transaction() as tx:
        tx.insert(table, id=1, v="committed")
        tx.insert(table, id=2, v="committed")
        tx.insert(table, id=3, v="committed")
    for number, gid in enumerate(("kept", "undone", "öffen"), start=1):
        with db.transaction() as tx:
            tx.update(table, {"id": number}, v=gid)
            tx.insert(table, id=10 + number, v=gid)
            tx.prepare(gid)
    db.commit_prepared("kept")
    with db.transaction() as tx:
        tx.insert(table, id=4, v="later")
    db.rollback_prepared("undone")


SCENARIOS: Final[Mapping[str, Callable[[Scenario], Any]]] = {
    "changes": changes,
    "concurrent": concurrent,
    "prepared": prepared,
}
"""By name: function that runs transactions in an empty scenario."""
