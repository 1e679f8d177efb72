"""Scenarios: operations, refused operations, and the resulting streams."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pytest
from msgspec.structs import asdict

from logicalrep import messages as m
from logicalrep._servers import MAJOR_VERSIONS
from logicalrep.catalog import BY_NAME
from logicalrep.errors import ScenarioError
from logicalrep.messages import (
    UNCHANGED,
    PrimaryKeepalive,
    ReplicaIdentity,
    XLogData,
)
from logicalrep.synth import Scenario, ScenarioTable, ScenarioTransaction
from logicalrep.synth.expected_rows import CommittedState
from logicalrep.synth.transaction import Savepoint
from tests.messages import make_column, make_relation
from tests.versions import OLDEST, UNKNOWN, WRITTEN, needs_version

INT8, TEXT = BY_NAME["int8"].oid, BY_NAME["text"].oid


def names(db: Scenario, **options: Any) -> list[str]:
    return [type(one).__name__ for one in db.messages(**options)]


def last(db: Scenario) -> CommittedState:
    return list(db.history())[-1]


def relation(table: ScenarioTable, xid: int | None = None) -> m.Relation:
    """Return the Relation message of a table with key `id` and text column `v`."""
    columns = (
        make_column("id", INT8, key=True),
        make_column("v", TEXT),
    )
    return make_relation(*columns, oid=table.definition.oid, xid=xid)


# Streams


def test_the_example_of_the_documentation() -> None:
    db = Scenario(proto_version=4, streaming="parallel", seed=7, logical_decoding_work_mem=0)
    orders = db.table("public.orders", id="int8 key", customer="text", amount="numeric(12,2)", note="text")
    with db.transaction() as tx:
        tx.insert(orders, id=1, customer="c-1", amount="9.5")
        with tx.savepoint() as point:
            point.update(orders, id=1, note="...")
            point.rollback()
    with db.transaction() as other:
        other.update(orders, {"id": 1}, id=2)
        other.prepare("g1")
    db.wait()
    db.commit_prepared("g1")
    block = ["StreamStart", "Relation", "Insert", "StreamStop", "StreamStart", "Update", "StreamStop"]
    second = ["StreamStart", "Relation", "Update", "StreamStop"]
    assert names(db) == [*block, "StreamAbort", "StreamCommit", *second, "StreamCommit"]
    prepared = ["BeginPrepare", "Update", "Prepare", "CommitPrepared"]
    asked: dict[str, Any] = {"proto_version": 3, "streaming": "off", "two_phase": True}
    assert names(db, **asked) == ["Begin", "Relation", "Insert", "Commit", *prepared]
    plain = list(db.messages(proto_version=OLDEST, streaming="off"))
    assert [type(one) for one in plain] == [
        m.Begin,
        m.Relation,
        m.Insert,
        m.Commit,
        m.Begin,
        m.Update,
        m.Commit,
    ]
    assert plain[2].new == ("1", "c-1", "9.50", None)  # type: ignore[union-attr]
    row = {"id": "2", "customer": "c-1", "amount": "9.50", "note": None}
    assert db.rows(orders) == last(db).tables["public.orders"] == [row]


def test_each_message_of_a_transaction() -> None:
    db = Scenario(proto_version=OLDEST, messages=True)
    t = db.table("public.t", id="int8 key", v="text")
    long = "x" * 3_000
    with db.transaction(origin="node", origin_lsn=77) as tx:
        tx.insert(t, id=1, v=long)
        tx.update(t, id=1, v="y")
        tx.update(t, {"id": 1}, v=long)
        tx.update(t, {"id": 1}, id=2)
        tx.delete(t, id=2)
        tx.truncate(t, cascade=True, restart_identity=True)
        tx.message("p", b"\0\xff")
    commit, oid = last(db), t.definition.oid
    sent = list(db.messages())
    assert isinstance(sent[-2], m.LogicalMessage)
    assert sent == [
        m.Begin(final_lsn=commit.commit_lsn, commit_time=commit.commit_time, xid=tx.xid),
        m.Origin(origin_lsn=77, name="node"),
        relation(t),
        m.Insert(relation_oid=oid, new=("1", long)),
        m.Update(relation_oid=oid, new=("1", "y")),
        m.Update(relation_oid=oid, new=("1", long)),
        m.Update(relation_oid=oid, new=("2", UNCHANGED), key=("1", None)),
        m.Delete(relation_oid=oid, key=("2", None)),
        relation(t),
        m.Truncate(
            options=m.TruncateOption.CASCADE | m.TruncateOption.RESTART_IDENTITY, relation_oids=(oid,)
        ),
        m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=sent[-2].lsn, prefix="p", content=b"\0\xff"),
        m.Commit(commit_lsn=commit.commit_lsn, end_lsn=commit.end_lsn, commit_time=commit.commit_time),
    ]
    assert commit.commit_lsn < commit.end_lsn == db.end_lsn


def test_copied_rows_are_one_insert_each_with_one_lsn() -> None:
    """A refused row undoes all rows of its command."""
    db = Scenario(proto_version=4)
    table = db.table("public.t", id="int8 key", v="text")
    with db.transaction() as tx:
        tx.copy(table, [{"id": number, "v": f"row {number}"} for number in range(3)])
        with pytest.raises(ScenarioError, match="has a row with id=1 already"):
            tx.copy(table, [{"id": 3}, {"id": 1}])
    sent = [one for one in db.stream() if isinstance(one, XLogData) and one.data[:1] == b"I"]
    assert names(db).count("Insert") == len(sent) == 3
    assert len({one.wal_start for one in sent}) == 1
    assert [row["id"] for row in last(db).tables["public.t"]] == ["0", "1", "2"]


def test_transaction_bytes_are_exact() -> None:
    db = Scenario(seed=5, proto_version=WRITTEN)
    t = db.table("public.t", id="int8 key", v="text")
    with db.transaction() as tx:
        tx.insert(t, id=1, v="é")
        tx.update(t, id=1, v=None)
    commit, oid = last(db), struct.pack(">I", t.definition.oid)
    columns = b"\x01id\0" + struct.pack(">Ii", 20, -1) + b"\0v\0" + struct.pack(">Ii", 25, -1)
    assert [one.data for one in db.stream() if isinstance(one, XLogData)] == [
        b"B" + struct.pack(">QqI", commit.commit_lsn, commit.commit_time, tx.xid),
        b"R" + oid + b"public\0t\0d" + b"\0\2" + columns,
        b"I" + oid + b"N\0\2t\0\0\0\x011t\0\0\0\x02\xc3\xa9",
        b"U" + oid + b"N\0\2t\0\0\0\x011n",
        b"C\0" + struct.pack(">QQq", commit.commit_lsn, commit.end_lsn, commit.commit_time),
    ]


def test_each_message_of_a_streamed_transaction() -> None:
    db = Scenario(streaming="parallel", logical_decoding_work_mem=0)
    t = db.table("public.t", id="int8 key", v="text")
    with db.transaction(origin="node", origin_lsn=77) as tx:
        tx.insert(t, id=1)
        with tx.savepoint() as point:
            point.delete(t, id=1)
            subxid = point.xid
            point.rollback()
    commit, oid, xid = last(db), t.definition.oid, tx.xid
    sent = list(db.messages())
    abort = sent[-2]
    assert isinstance(abort, m.StreamAbort)
    assert sent == [
        m.StreamStart(xid=xid, first_stream_segment=True),
        m.Origin(origin_lsn=0, name="node"),
        relation(t, xid),
        m.Insert(relation_oid=oid, new=("1", None), xid=xid),
        m.StreamStop(),
        m.StreamStart(xid=xid, first_stream_segment=False),
        m.Delete(relation_oid=oid, xid=subxid, key=("1", None)),
        m.StreamStop(),
        m.StreamAbort(xid=xid, subxid=subxid, abort_lsn=abort.abort_lsn, abort_time=abort.abort_time),
        m.StreamCommit(
            xid=xid, commit_lsn=commit.commit_lsn, end_lsn=commit.end_lsn, commit_time=commit.commit_time
        ),
    ]
    assert abort.abort_lsn is not None
    assert abort.abort_lsn <= commit.commit_lsn
    on = next(one for one in db.messages(streaming="on") if isinstance(one, m.StreamAbort))
    assert on == m.StreamAbort(xid=xid, subxid=subxid)


def test_each_message_of_prepared_transactions() -> None:
    db = Scenario(proto_version=3, two_phase=True)
    t = db.table("public.t", id="int8 key", v="text")
    with db.transaction() as one:
        one.insert(t, id=1)
        one.prepare("kept")
    with db.transaction() as other:
        other.insert(t, id=2)
        other.prepare("not kept")
    db.rollback_prepared("not kept")
    db.commit_prepared("kept")
    commit, oid = last(db), t.definition.oid
    sent: list[Any] = list(db.messages())
    first, second, rolled_back = sent[3], sent[6], sent[7]
    assert sent == [
        m.BeginPrepare(**asdict(first)),
        relation(t),
        m.Insert(relation_oid=oid, new=("1", None)),
        first,
        m.BeginPrepare(**asdict(second)),
        m.Insert(relation_oid=oid, new=("2", None)),
        second,
        m.RollbackPrepared(
            prepare_end_lsn=second.end_lsn,
            rollback_end_lsn=rolled_back.rollback_end_lsn,
            prepare_time=second.prepare_time,
            rollback_time=rolled_back.rollback_time,
            xid=other.xid,
            gid="not kept",
        ),
        m.CommitPrepared(
            commit_lsn=commit.commit_lsn,
            end_lsn=commit.end_lsn,
            commit_time=commit.commit_time,
            xid=one.xid,
            gid="kept",
        ),
    ]
    assert [type(one) for one in (first, second)] == [m.Prepare, m.Prepare]
    assert (first.gid, first.xid) == (commit.gid, commit.xid) == ("kept", one.xid)
    assert (second.gid, second.xid) == ("not kept", other.xid)
    lsns = [lsn for one in (first, second) for lsn in (one.prepare_lsn, one.end_lsn)]
    assert lsns == sorted(lsns)
    assert lsns[-1] <= rolled_back.rollback_end_lsn
    assert db.rows(t) == [{"id": "1", "v": None}]
    assert names(db, streaming="on", proto_version=4) == names(db)


def test_enums_and_domains() -> None:
    db = Scenario(proto_version=OLDEST)
    db.enum("app.mood")
    db.domain("app.positive", "int4")
    t = db.table("app.t", id="app.positive key", moods="app.mood[]", mood="app.mood")
    with db.transaction() as tx:
        tx.insert(t, id=7, moods=["ok", None], mood="sad")
    sent: list[Any] = list(db.messages())
    oids = [column.type_oid for column in sent[4].columns]
    assert sent[1:4] == [
        m.Type(oid=oids[0], namespace="", name="int4"),
        m.Type(oid=oids[1], namespace="app", name="_mood"),
        m.Type(oid=oids[2], namespace="app", name="mood"),
    ]
    assert sent[5].new == ("7", "{ok,NULL}", "sad")
    binary: Any = list(db.messages(binary=True))[5]
    array = struct.pack(">iiIii", 1, 1, oids[2], 2, 1) + b"\0\0\0\2ok\xff\xff\xff\xff"
    assert binary.new == (b"\0\0\0\7", array, b"sad")


def test_row_filters_turn_updates_into_inserts_and_deletes() -> None:
    db = Scenario(proto_version=OLDEST)
    t = db.table("public.t", id="int4 key", v="text", where=("id", "<", 10))
    with db.transaction() as tx:
        tx.insert(t, id=1)
        tx.insert(t, id=10)
        tx.update(t, {"id": 1}, id=2)
        tx.update(t, {"id": 2}, id=20)
        tx.update(t, {"id": 20}, id=3)
        tx.update(t, {"id": 10}, v="hidden")
        tx.delete(t, id=10)
    assert names(db) == ["Begin", "Relation", "Insert", "Update", "Delete", "Insert", "Commit"]


def test_unpublished_tables_and_columns_are_not_sent() -> None:
    db = Scenario(proto_version=OLDEST)
    hidden = db.table("public.h", id="int4 key", published=False)
    listed = db.table("public.l", id="int4 key", secret="text", column_list=["id"])
    with db.transaction() as tx:
        tx.insert(hidden, id=1)
    assert names(db) == []
    with db.transaction() as tx:
        tx.insert(listed, id=1, secret="x")
    assert [one.new for one in db.messages() if isinstance(one, m.Insert)] == [("1",)]
    assert db.rows(listed) == [{"id": "1", "secret": "x"}]


@pytest.mark.parametrize("via_root", [False, True])
def test_changes_of_partitions(via_root: bool) -> None:
    db = Scenario(proto_version=OLDEST, publish_via_partition_root=via_root)
    t = db.table(
        "public.t", id="int4 key", at="text key", partition_by="at", partitions={"t_a": ["a"], "t_b": ["b"]}
    )
    with db.transaction() as tx:
        tx.insert(t, id=1, at="a")
        tx.update(t, {"id": 1}, at="b")
        tx.truncate(t)
    sent: list[Any] = list(db.messages())
    root = t.definition.oid
    a, b = (leaf.definition.oid for leaf in t.leaves())
    if via_root:
        described = ["Relation", "Relation"]
        kinds = [*described, "Insert", "Delete", *described, "Insert"]
        assert [type(one).__name__ for one in sent[1:8]] == kinds
        assert [one.relation_oid for one in sent if hasattr(one, "relation_oid")] == [root, root, root]
        assert sent[-2] == m.Truncate(options=m.TruncateOption(0), relation_oids=(root,))
    else:
        assert [one.relation_oid for one in sent if hasattr(one, "relation_oid")] == [a, a, b]
        assert sent[-2] == m.Truncate(options=m.TruncateOption(0), relation_oids=(a, b))


def test_alter_table_sends_a_new_relation_message() -> None:
    db = Scenario(proto_version=OLDEST)
    t = db.table("public.t", id="int4 key", v="varchar(8)")
    for change in (
        {},
        {"add": {"n": "int2"}},
        {"rename": {"v": "w"}},
        {"retype": {"n": "int4"}},
        {"drop": ["w"]},
    ):
        with db.transaction() as tx:
            tx.alter(t, **change)
            tx.insert(t, id=len(db.rows(t)))
    with db.transaction() as tx:
        tx.alter(t, name="u", replica_identity="full")
        tx.delete(t, id=0)
    relations = [one for one in db.messages() if isinstance(one, m.Relation)]
    assert [[column.name for column in one.columns] for one in relations] == [
        *(["id", "v"], ["id", "v", "n"], ["id", "w", "n"], ["id", "w", "n"], ["id", "n"], ["id", "n"])
    ]
    assert (relations[-1].name, relations[-1].replica_identity) == ("u", ReplicaIdentity.FULL)
    assert [one.old for one in db.messages() if isinstance(one, m.Delete)] == [("0", None)]
    assert list(last(db).tables) == ["public.u"]


def test_tables_exchange_their_names_in_one_transaction() -> None:
    db = Scenario(proto_version=OLDEST)
    a, b = (db.table(f"public.{name}", id="int4") for name in "ab")
    with db.transaction() as tx:
        tx.insert(a, id=1)
        for table, name in ((a, "c"), (b, "a"), (a, "b")):
            tx.alter(table, name=name)
    assert last(db).tables == {"public.a": [], "public.b": [{"id": "1"}]}


def test_new_rows_have_the_type_of_a_retyped_generated_column() -> None:
    db = Scenario()
    t = db.table("public.t", id="int4 key", generated={"g": "id"})
    with db.transaction() as tx:
        tx.insert(t, id=1)
        tx.alter(t, retype={"g": "numeric(4,2)"})
        tx.insert(t, id=2)
        with pytest.raises(ScenarioError, match=r"public\.t\.g: .*more than 2 digits"):
            tx.insert(t, id=100)
    assert [row["g"] for row in db.rows(t)] == ["1.00", "2.00"]


@pytest.mark.parametrize("text", ["ab", "é"])
def test_sizes_of_wal_records_count_bytes(text: str) -> None:
    db = Scenario()
    before = db.end_lsn
    db.message(text * 100, "")
    assert db.end_lsn - before == 64 + 200


# Servers


def test_servers_before_15_send_empty_transactions() -> None:
    found = {}
    for server in {10, 13, 14, 15} & {*MAJOR_VERSIONS}:
        db = Scenario(server=server, proto_version=OLDEST)
        t, hidden = (
            db.table("public.t", id="int4 key"),
            db.table("public.h", id="int4 key", published=False),
        )
        with db.transaction(origin="node") as tx:
            tx.insert(hidden, id=1)
        with db.transaction() as tx, tx.savepoint() as point:
            point.insert(t, id=1)
            point.rollback()
        with db.transaction() as tx:
            tx.insert(t, id=1)
            tx.truncate(t)
        found[server] = names(db)
    hidden_changes, rolled_back = ["Begin", "Origin", "Commit"], ["Begin", "Commit"]
    changed = ["Begin", "Relation", "Insert", "Relation", "Truncate", "Commit"]
    expected = {
        10: [*hidden_changes, "Begin", "Relation", "Insert", "Commit"],
        13: [*hidden_changes, *changed],
        14: [*hidden_changes, *rolled_back, *changed],
        15: changed,
    }
    assert found == {server: expected[server] for server in found}


def test_the_flag_two_phase_of_the_slot_holds_in_every_protocol_version() -> None:
    db = Scenario(server=15, proto_version=OLDEST, two_phase=True)
    t = db.table("public.t", id="int4 key")
    with db.transaction() as tx:
        tx.insert(t, id=1)
        tx.prepare("gid")
    db.commit_prepared("gid")
    expected = ["BeginPrepare", "Relation", "Insert", "Prepare", "CommitPrepared"]
    assert names(db) == names(db, proto_version=3) == expected
    assert db.options.requested() == {}
    assert Scenario(proto_version=3, two_phase=True).options.requested() == {"two_phase": "on"}
    assert list(db.stream()) == list(db.stream(proto_version=3))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"server": 9},
            "server must be a major version of PostgreSQL from .* to .*, not 9",
        ),
        (
            {"server": 15, "streaming": "parallel"},
            "PostgreSQL 15 has no streaming = parallel, which",
        ),
        ({"server": 14, "two_phase": True}, "PostgreSQL 14 has no two_phase = on, which needs PostgreSQL 15"),
        ({"server": 15, "origin": "none"}, "PostgreSQL 15 has no origin = none, which needs PostgreSQL 16"),
        ({"server": 14, "proto_version": 3}, "PostgreSQL 14 has no protocol version 3, which needs Post"),
        pytest.param(
            {"server": 12, "publish_via_partition_root": True},
            "no publish_via_partition_root; use",
            marks=needs_version(1),
        ),
    ],
)
def test_options_that_a_server_lacks_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Scenario(**options)


def test_a_server_limits_streams_and_tables() -> None:
    db = Scenario(server=14)
    assert (db.options.proto_version, db.server_version) == (2, "14.0")
    with pytest.raises(ValueError, match="PostgreSQL 14 has no protocol version 3"):
        next(db.stream(proto_version=3))
    for publication in ({"where": ("id", "=", 1)}, {"column_list": ["id"]}):
        with pytest.raises(ScenarioError, match="PostgreSQL 14 has no row filters and column lists"):
            db.table("public.t", {"id": "int4 key"}, **publication)


# LSNs of envelopes


def test_envelope_lsns() -> None:
    db = Scenario(proto_version=OLDEST, messages=True)
    db.enum("app.mood")
    t = db.table("public.t", id="int8 key", v="app.mood")
    with db.transaction(origin="node", origin_lsn=77) as tx:
        tx.insert(t, id=1)
    db.message("p", "at once")
    db.wait()
    with db.transaction() as tx:
        tx.insert(t, id=2)
    sent = list(db.stream())
    envelopes = [one for one in sent if isinstance(one, XLogData)]
    assert all(one.wal_start == one.wal_end for one in envelopes)
    has_lsn = list(zip(names(db), (one.wal_start > 0 for one in envelopes), strict=True))
    assert has_lsn == [
        *(("Begin", False), ("Origin", True), ("Type", False), ("Relation", False), ("Insert", True)),
        *(("Commit", True), ("LogicalMessage", True), ("Begin", True), ("Insert", True), ("Commit", True)),
    ]
    ends = [one.end_lsn for one in db.history()]
    assert [envelopes[5].wal_start, envelopes[9].wal_start] == ends
    message: Any = list(db.messages())[6]
    assert envelopes[6].wal_start == message.lsn
    keepalives = [one for one in sent if isinstance(one, PrimaryKeepalive)]
    assert (sent[7], sent[-1]) == tuple(keepalives)
    assert ends[0] < keepalives[0].wal_end < ends[1] == keepalives[1].wal_end == db.end_lsn
    times = [one.send_time for one in sent]
    assert times == sorted(times)
    assert keepalives[0].send_time - envelopes[6].send_time > 1_000_000


def test_stream_start_before_an_origin_has_lsn_zero() -> None:
    db = Scenario(streaming="on", logical_decoding_work_mem=0)
    t = db.table("public.t", id="int8 key", v="text")
    with db.transaction(origin="node") as tx:
        tx.insert(t, id=1)
        tx.insert(t, id=2)
    starts = [one.wal_start > 0 for one in db.stream() if isinstance(one, XLogData) and one.data[:1] == b"S"]
    assert starts == [False, True]


def test_output_is_deterministic_for_a_seed() -> None:
    def stream(seed: int) -> list[Any]:
        db = Scenario(seed=seed)
        t = db.table("public.t", id="int8 key", v="text")
        with db.transaction() as tx:
            tx.insert(t, id=1)
        return list(db.stream())

    assert stream(3) == stream(3)
    assert stream(3) != stream(4)


# Refused operations


class Shop:
    """A scenario with tables, rows and two open transactions, to try operations that are refused."""

    def __init__(self) -> None:
        self.db = Scenario()
        self.t = self.db.table(
            "public.t", id="int4 key", v="text", n="numeric(4,1)", c="varchar(3)", b="bool"
        )
        self.keyless = self.db.table("public.keyless", id="int4")
        self.full = self.db.table("public.full", id="int4", v="text", replica_identity="full")
        self.listed = self.db.table("public.listed", id="int4 key", v="text", column_list=["v"])
        self.filtered = self.db.table("public.filtered", id="int4 key", v="text", where=("v", "=", "x"))
        self.parts = self.db.table(
            "public.parts", id="int4 key", at="text key", partition_by="at", partitions={"parts_a": ["a"]}
        )
        with self.db.transaction() as tx:
            for table in (self.t, self.keyless, self.listed, self.filtered):
                tx.insert(table, id=1)
            tx.insert(self.full, id=1, v="a")
            tx.insert(self.full, id=1, v="b")
        self.tx = self.db.transaction()
        self.other = self.db.transaction()


Do: TypeAlias = Callable[[Shop], object]

REFUSED: list[tuple[Do | tuple[Do, Do], str]] = [
    (lambda s: s.tx.insert(s.t, id=1), r"public\.t has a row with id=1 already"),
    (lambda s: s.tx.insert(s.t, v="x"), r"a key column must not be NULL \(id=None\)"),
    (lambda s: s.tx.insert(s.t, id=2, x=1), r"public\.t has no column x; it has id, v, n, c, b"),
    (
        lambda s: s.tx.insert(s.t, id=1 << 31),
        r"public\.t\.id: '2147483648' is not what a server writes for",
    ),
    (lambda s: s.tx.insert(s.t, id="one"), r"public\.t\.id: 'one' is not what a server"),
    (lambda s: s.tx.insert(s.t, id=2, n=Decimal("1000")), r"more than 3 digits before the decimal point"),
    (lambda s: s.tx.insert(s.t, id=2, c="four"), r"longer than 3 characters"),
    (lambda s: s.tx.insert(s.t, id=2, b="perhaps"), r"for the type bool"),
    (lambda s: s.tx.insert(s.t, id=2, v="\0"), r"contains a zero byte"),
    (lambda s: s.tx.insert(s.t, id=2, v=object()), r"Python type object is not supported; pass text"),
    (lambda s: s.tx.insert(s.parts, id=1, at="z"), r"no partition for at = z; partitions exist for a"),
    (lambda s: s.tx.update(s.t, {"id": 9}, v="x"), r"public\.t has no row with \{'id': 9\}"),
    (lambda s: s.tx.update(s.t, v="x"), r"identify the row by its key columns"),
    (lambda s: s.tx.delete(s.full, id=1), r"has 2 different rows with \{'id': 1\}; expected one"),
    (lambda s: s.tx.delete(s.keyless, id=1), r"cannot delete from table public\.keyless: it has no replica"),
    (lambda s: s.tx.update(s.listed, id=1, v="x"), r"its column list does not cover the replica identity"),
    (
        lambda s: s.tx.update(s.filtered, id=1, v="x"),
        r"its row filter uses a column outside the replica identity",
    ),
    (lambda s: s.tx.truncate(), r"truncate needs at least one table"),
    (
        (lambda s: s.tx.update(s.t, id=1, v="x"), lambda s: s.other.delete(s.t, id=1)),
        r"a server would wait",
    ),
    ((lambda s: s.tx.insert(s.t, id=2), lambda s: s.other.insert(s.t, id=2)), r"a server would wait"),
    (
        (lambda s: s.tx.truncate(s.t), lambda s: s.other.insert(s.t, id=2)),
        r"another open transaction that truncated or altered",
    ),
    (
        (lambda s: s.tx.insert(s.t, id=2), lambda s: s.other.truncate(s.t)),
        r"another open transaction that changed it",
    ),
    (
        (lambda s: s.tx.insert(s.t, id=2), lambda s: s.other.alter(s.t, add={"x": "int4"})),
        r"that changed it; a server",
    ),
    (
        (lambda s: s.tx.commit(), lambda s: s.tx.insert(s.t, id=2)),
        r"transaction or savepoint has ended",
    ),
    ((lambda s: s.tx.savepoint(), lambda s: s.tx.insert(s.t, id=2)), r"a savepoint is open"),
    ((lambda s: s.tx.savepoint(), lambda s: s.tx.commit()), r"a savepoint is open"),
    (
        (lambda s: s.tx.prepare("g"), lambda s: s.other.prepare("g")),
        r"transaction identifier 'g' is already in use",
    ),
    (lambda s: s.tx.prepare("x" * 200), r"gid must have 1 to 199 bytes"),
    (lambda s: s.tx.prepare(""), r"gid must have 1 to 199 bytes"),
    ((lambda s: s.tx.prepare("g"), lambda s: s.tx.commit()), r"has ended"),
    (lambda s: s.db.commit_prepared("g"), r"prepared transaction with identifier 'g' does not exist"),
    (lambda s: s.db.rollback_prepared("g"), r"prepared transaction with identifier 'g' does not exist"),
    (lambda s: s.tx.alter(s.parts, add={"x": "int4"}), r"cannot alter a partitioned table"),
    (lambda s: s.tx.alter(s.t, drop=["id"]), r"cannot drop part of a key: id"),
    (lambda s: s.tx.alter(s.t, drop=["x"]), r"has no column x"),
    (lambda s: s.tx.alter(s.t, rename={"v": "id"}), r"would have two columns with the same name"),
    (lambda s: s.tx.alter(s.t, add={"x": "nothing"}), r"unknown type 'nothing'"),
    (
        lambda s: s.tx.alter(s.t, replica_identity="some"),
        r"replica_identity must be one of default, nothing, full",
    ),
    (lambda s: s.tx.alter(s.t, name="full"), r"table public\.full exists already"),
    ((lambda s: s.tx.alter(s.t, name="u"), lambda s: s.other.alter(s.full, name="t")), r"t exists already"),
    ((lambda s: s.tx.alter(s.t, name="u"), lambda s: s.db.table("public.t", i="int4")), r"t exists already"),
    (lambda s: s.db.table("public.t", id="int4"), r"table public\.t exists already"),
    (lambda s: s.db.table("t", id="int4"), r"'t' has no schema; use a qualified name"),
    (lambda s: s.db.table("public.x", id="serial"), r"column id: unknown type 'serial'"),
    (lambda s: s.db.table("public.x", id="int4(3)"), r"type int4 does not accept the modifier \(3\)"),
    (lambda s: s.db.table("public.x", id=""), r"column id: the column type is missing"),
    (lambda s: s.db.table("public.x", id="int4", replica_identity=["y"]), r"has no column y"),
    (
        lambda s: s.db.table("public.x", id="int4", replica_identity=[]),
        r"a unique index needs at least one column",
    ),
    (
        lambda s: s.db.table("public.x", id="int4", where=("id", "~", 1)),
        r"where: operator must be one of .*, not '~'",
    ),
    (
        lambda s: s.db.table("public.x", d="date", where=("d", "=", "2000-01-01")),
        r"where: column d must be of type",
    ),
    (lambda s: s.db.table("public.x", id="int4", where=("id", "=", None)), r"cannot compare with NULL"),
    (lambda s: s.db.table("public.x", id="int4", partitions={"x_a": [1]}), r"partitions needs partition_by"),
    (lambda s: s.db.table("public.x", id="int4", partition_by="id"), r"partition_by needs partitions"),
    ((lambda s: s.db.enum("app.e"), lambda s: s.db.enum("app.e")), r"type app\.e exists already"),
]


@pytest.mark.parametrize(("do", "text"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_operations_that_a_server_refuses_are_refused(do: Do | tuple[Do, Do], text: str) -> None:
    shop = Shop()
    before = list(shop.db.history())
    if isinstance(do, tuple):
        do[0](shop)
        do = do[1]
    with pytest.raises(ScenarioError, match=text):
        do(shop)
    assert list(shop.db.history())[:1] == before


def test_refused_operations_change_nothing() -> None:
    shop, untouched = Shop(), Shop()
    tries: list[Do] = [
        lambda s: s.tx.insert(s.t, id=1),
        lambda s: s.tx.update(s.t, id=1, c="four"),
        lambda s: s.tx.delete(s.full, id=1),
        lambda s: s.tx.prepare(""),
    ]
    for do in tries:
        with pytest.raises(ScenarioError):
            do(shop)
    for one in (shop, untouched):
        one.tx.insert(one.t, id=2)
        one.tx.commit()
    assert list(shop.db.stream()) == list(untouched.db.stream())


def test_options_of_later_versions_are_refused() -> None:
    with pytest.raises(ValueError, match="streaming = parallel needs protocol version 4, not 2"):
        list(Scenario(proto_version=2).stream(streaming="parallel"))
    with pytest.raises(ValueError, match=f"there is no protocol version {UNKNOWN}"):
        Scenario(proto_version=UNKNOWN)


# Concurrent transactions


def test_an_exception_rolls_back() -> None:
    db = Scenario()
    t = db.table("public.t", id="int8 key", v="text")

    def fail(work: ScenarioTransaction | Savepoint, key: int) -> None:
        with work:
            work.insert(t, id=key)
            raise KeyError

    with pytest.raises(KeyError):
        fail(db.transaction(), 1)
    with db.transaction() as tx:
        tx.insert(t, id=2)
        with pytest.raises(KeyError):
            fail(tx.savepoint(), 3)
    assert [row["id"] for row in db.rows(t)] == ["2"]
    assert [one.new[0] for one in db.messages() if isinstance(one, m.Insert)] == ["2"]


def test_other_transactions_see_the_committed_row() -> None:
    db = Scenario()
    t = db.table("public.t", id="int8 key", v="text")
    one, other = db.transaction(), db.transaction()
    one.insert(t, id=1, v="a")
    with pytest.raises(ScenarioError, match="has no row"):
        other.update(t, id=1, v="b")
    assert db.rows(t) == []
    one.commit()
    other.update(t, id=1, v="b")
    assert db.rows(t) == [{"id": "1", "v": "a"}]
    other.commit()
    assert [done.tables["public.t"][0]["v"] for done in db.history()] == ["a", "b"]


def test_rolling_back_a_savepoint_unlocks_its_rows() -> None:
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


def test_rolling_back_a_savepoint_frees_its_keys() -> None:
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


@pytest.mark.parametrize("options", [{"proto_version": OLDEST}, {"streaming": "parallel"}])
def test_alter_table_by_a_filtered_origin_sends_a_relation_message(options: dict[str, Any]) -> None:
    db = Scenario(origin="none", logical_decoding_work_mem=0, **options)
    t = db.table("public.t", id="int8 key")
    for origin in (None, "node", None):
        with db.transaction(origin=origin) as tx:
            if origin is not None:
                tx.alter(t, add={"v": "text"})
            tx.insert(t, id=len(db.rows(t)))
    relations = [one for one in db.messages() if isinstance(one, m.Relation)]
    assert [len(one.columns) for one in relations] == [1, 2]


def test_a_rollback_does_not_resend_relations_altered_by_others() -> None:
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


def test_tables_of_another_scenario_are_refused() -> None:
    db, other = Scenario(), Scenario()
    elsewhere = other.table("public.t", id="int4 key")
    with db.transaction() as tx:
        for table in ("public.t", elsewhere):
            with pytest.raises(ScenarioError, match="is not a table of this scenario"):
                tx.insert(table, id=1)  # type: ignore[arg-type]


def test_a_key_is_unique_after_its_column_was_renamed_and_named_back() -> None:
    db = Scenario()
    t = db.table("public.t", id="int4 key")
    with db.transaction() as tx:
        tx.insert(t, id=1)
        tx.alter(t, rename={"id": "x"})
        tx.insert(t, x=5)
        tx.alter(t, rename={"x": "id"})
        with pytest.raises(ScenarioError, match="has a row with id=5 already"):
            tx.insert(t, id=5)
