"""An example scenario with the message types and special cases that every reader of streams must handle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Unpack

from logicalrep.synth import Scenario, ScenarioTable, TransactionScope
from logicalrep.testing.options import ScenarioOptions

_LARGE_LENGTH: Final = 3000
"""Number of characters of a text that is stored out of line (TOAST), so that updates of other columns do not
send the text again."""

_IMPORTED_ROWS: Final = 400
"""Number of rows in each of three parts of the large transaction of `shop`. The transaction is streamed
unless the option `streaming` is `off`."""


def shop(**options: Unpack[ScenarioOptions]) -> Scenario:
    """Return an example scenario: a small shop with customers and orders.

    The scenario contains changed keys, NULLs, an unchanged TOASTed value, an enum, a table with REPLICA
    IDENTITY FULL, an added column, TRUNCATE, rolled-back subtransactions and transactions, logical messages,
    a large transaction, and two prepared transactions.

    Args:
        options: Options of `Scenario`.

    Raises:
        ValueError: The protocol version does not support an option.
    """
    db = Scenario(**options)
    db.enum("public.state")
    customers = db.table("public.customers", id="int8 key", name="text", notes="text", created="timestamptz")
    orders = db.table(
        "public.orders",
        id="int8 key",
        customer_id="int8",
        state="public.state",
        amount="numeric(12,2)",
        placed_on="date",
    )
    audit = db.table("public.audit", what="text", details="jsonb", replica_identity="full")

    with db.transaction() as tx:
        for number, name in enumerate(("Ada", "Grace", "Łucja"), start=1):
            tx.insert(customers, id=number, name=name, created=f"2024-01-0{number} 12:00:00+00")
        tx.insert(customers, id=4, name="Nobody", notes="x" * _LARGE_LENGTH)
    with db.transaction() as tx:
        tx.insert(orders, id=1, customer_id=1, state="open", amount="9.50", placed_on="2024-02-29")
        tx.insert(audit, what="order", details={"id": 1})
        tx.message("shop", "an order was placed")
    with db.transaction() as tx:
        tx.update(customers, id=4, name="Somebody")
        tx.update(customers, {"id": 2}, id=20)
        tx.update(orders, id=1, state="paid")
        tx.update(audit, {"what": "order"}, details={"id": 1, "paid": True})
    db.message("shop", b"\x00 not transactional")
    with db.transaction() as tx:
        tx.insert(orders, id=2, customer_id=20, state="open", amount="0.99")
        with tx.savepoint() as point:
            point.delete(orders, id=1)
            point.rollback()
        with tx.savepoint() as point:
            point.insert(orders, id=3, customer_id=None, state=None, amount="NaN")
    with db.transaction() as tx:
        tx.delete(customers, id=1)
        tx.rollback()
    with db.transaction() as tx:
        _import(tx, orders, range(100, 100 + _IMPORTED_ROWS))
        with tx.savepoint() as point:
            _import(point, orders, range(1000, 1000 + _IMPORTED_ROWS))
            with db.transaction() as other:
                other.insert(customers, id=5, name="Alan")
            point.rollback()
        _import(tx, orders, range(100 + _IMPORTED_ROWS, 100 + 2 * _IMPORTED_ROWS))
    with db.transaction() as tx:
        tx.alter(customers, add={"email": "text"})
        tx.insert(customers, id=6, name="Barbara", email="barbara@example.com")
    with db.transaction() as tx:
        tx.delete(customers, id=3)
        tx.truncate(audit)
        tx.prepare("moved")
    with db.transaction() as tx:
        tx.delete(orders, id=2)
        tx.prepare("undone")
    db.wait()
    db.commit_prepared("moved")
    db.rollback_prepared("undone")
    return db


def _import(work: TransactionScope, orders: ScenarioTable, numbers: Iterable[int]) -> None:
    for number in numbers:
        work.insert(orders, id=number, customer_id=20, state="imported", amount=number)
