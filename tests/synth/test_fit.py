"""Profiles that are fitted to a stream: `fit_profile` and `logicalrep synth --like`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from logicalrep.capturefile import CaptureFile
from logicalrep.catalog import BY_NAME, TYPES, BuiltinType
from logicalrep.errors import RecordingError
from logicalrep.messages import Insert, Relation, ReplicaIdentity, XLogData
from logicalrep.recording import RecordingReader
from logicalrep.stream import StreamDecoder, Transaction, Transactions
from logicalrep.stream.check import check
from logicalrep.synth import Scenario, write_capture_file
from logicalrep.synth.workload import Workload, fit_profile, write_recording
from logicalrep.synth.workload.definition import ColumnShape
from logicalrep.synth.workload.values import draw_values
from logicalrep.values import decode_binary, encode_binary
from tests.codec import corpus
from tests.conftest import Run
from tests.synth.test_workload import assert_expected_rows
from tests.synth.workloads import check_options, sent

SECRET = "Ms. Secret "


def shop() -> Scenario:
    """Return a scenario whose transactions each insert an order with two items, and update a customer."""
    db = Scenario(seed=3)
    customers = db.table("shop.customers", id="uuid key", name="text", age="int4")
    orders = db.table("shop.orders", {"note": "text", "id": "int8 key", "at": "timestamptz"})
    items = db.table("shop.items", {"order": "int8 key", "line": "int2 key"}, replica_identity="full")
    customer = "00000000-0000-0000-0000-000000000001"
    with db.transaction() as tx:
        tx.insert(customers, id=customer, name=SECRET)
    for number in range(40):
        with db.transaction() as tx:
            note = SECRET * (number % 4) if number % 2 else None
            tx.insert(orders, {"note": note, "id": number, "at": "2026-01-02 03:04:05+00"})
            tx.insert(items, {"order": number, "line": 1})
            tx.insert(items, {"order": number, "line": 2})
            tx.update(customers, id=customer, age=number)
    return db


def transactions(db: Scenario) -> list[Transaction]:
    decoder = StreamDecoder(db.options.proto_version)
    collected = Transactions(decoder)
    sent = (decoder.decode(one.data) for one in db.stream() if isinstance(one, XLogData))
    return [done for message in sent if (done := collected.feed(message)) is not None]


def relations(done: list[Transaction]) -> dict[str, Relation]:
    return {change.relations[0].name: change.relations[0] for one in done for change in one.changes}


def order(transaction: Transaction) -> tuple[tuple[str, str], ...]:
    """Return table and kind of each change."""
    return tuple((change.relations[0].name, type(change.message).__name__) for change in transaction.changes)


def test_a_profile_has_the_tables_and_the_order_of_changes_but_no_values(tmp_path: Path) -> None:
    recorded = transactions(shop())
    profile = fit_profile(recorded)
    assert SECRET.strip() not in repr(profile)
    workload = Workload(**msgspec.structs.asdict(profile), transactions=400, seed=1)
    write_recording(workload, tmp_path / "made")
    with RecordingReader(tmp_path / "made") as made:
        done = list(made.transactions())
    with RecordingReader(tmp_path / "made") as made:
        assert_expected_rows(made, tmp_path / "made" / "expected_rows")
    for name, relation in relations(recorded).items():
        assert msgspec.structs.replace(relations(done)[name], oid=relation.oid) == relation
    assert relations(done)["items"].replica_identity == ReplicaIdentity.FULL
    orders = Counter(map(order, done[1:]))
    assert orders[order(recorded[1])] > 300  # an update without a row is an insert
    assert len(orders) < 10
    notes = [
        change.message.new[0]
        for tx in done
        for change in tx.changes
        if isinstance(change.message, Insert) and change.relations[0].name == "orders"
    ]
    sizes = [len(note) for note in notes if isinstance(note, str)]
    assert notes.count(None) / len(notes) == pytest.approx(0.5, abs=0.1)
    assert (min(sizes), max(sizes)) == (len(SECRET), 3 * len(SECRET))
    assert SECRET not in "".join(note for note in notes if isinstance(note, str))


@pytest.mark.parametrize("name", ["pg10_ws_p1", "pg18_ws_p4_par_2pc_msg"])
def test_streams_like_a_capture_are_legal_and_lead_to_the_expected_rows(name: str, tmp_path: Path) -> None:
    with CaptureFile(corpus.path(name)) as capture:
        profile = fit_profile(capture.transactions())
    assert profile.varied > 0
    workload = Workload(**msgspec.structs.asdict(profile), transactions=200)
    assert list(check(sent(workload), check_options(workload))) == []
    write_recording(workload, tmp_path / "made")
    with RecordingReader(tmp_path / "made") as made:
        assert_expected_rows(made, tmp_path / "made" / "expected_rows")


def test_a_stream_without_row_changes_has_no_profile() -> None:
    with pytest.raises(RecordingError, match="none of 0 transactions consists of inserts"):
        fit_profile([])
    with pytest.raises(TypeError, match=r"not a path; pass RecordingReader\(path\).transactions\(\)"):
        fit_profile("made")  # type: ignore[arg-type]


def test_the_command_makes_a_stream_like_a_recording(run: Run, tmp_path: Path) -> None:
    write_capture_file(shop(), tmp_path / "real.jsonl")
    made = tmp_path / "made.jsonl"
    assert run("synth", "--like", str(tmp_path / "real.jsonl"), "--seed", "2", "-o", str(made)).code == 0
    assert run("check", str(made)).code == 0
    assert b"customers".hex().encode() in made.read_bytes()
    assert SECRET.encode().hex().encode() not in made.read_bytes()
    (tmp_path / "empty.jsonl").write_text('{"proto_version": 4}\n', encoding="utf-8")
    empty = run("synth", "--like", str(tmp_path / "empty.jsonl"), "-o", str(tmp_path / "x"))
    assert (empty.code, "empty.jsonl: none of 0 transactions" in empty.err) == (2, True), empty
    both = run("synth", "--like", str(made), "--profile", "oltp", "-o", str(tmp_path / "x"))
    assert (both.code, "--profile" in both.err) == (2, True)


@pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.name)
def test_drawn_values_are_values_of_their_type(type_: BuiltinType) -> None:
    for oid in filter(None, (type_.oid, type_.array_oid)):
        values = draw_values(np.random.default_rng(1), 40, ColumnShape(name="v", type_oid=oid)).to_pylist()
        assert len(values) == 40
        if type_.name == "money":  # its binary form has no currency
            continue
        for text in filter(None, values):
            assert decode_binary(encode_binary(text, oid), oid) == text


@pytest.mark.parametrize(("modifier", "length"), [(-1, 9), (4 + 12, 12)])
def test_drawn_values_of_bpchar_have_the_length_of_the_type(modifier: int, length: int) -> None:
    column = ColumnShape(name="v", type_oid=BY_NAME["bpchar"].oid, type_modifier=modifier, sizes=(9, 9))
    assert {len(text) for text in draw_values(np.random.default_rng(1), 9, column).to_pylist()} == {length}
