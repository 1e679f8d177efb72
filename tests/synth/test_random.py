"""Scenarios at random, with the options of every version: what holds of all of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from pgoutput.messages import XLogData
from pgoutput.stream import Tables
from pgoutput.stream.check import Checker, CheckOptions, check
from pgoutput.synth import Scenario
from pgoutput.testing import FAULTS, Stream
from pgoutput.testing.programs import Alter, Program
from tests.synth.choices import ASKED, chosen
from tests.synth.reading import Reader

SEEDS = range(100)
FEW = SEEDS[::9]
ENDS = (b"C", b"c", b"P", b"p", b"K", b"r")

asked = pytest.mark.parametrize("options", ASKED, ids=lambda options: " ".join(map(str, options.values())))


@asked
@pytest.mark.parametrize("origin", ["any", "none"])
def test_no_rule_is_broken(options: dict[str, Any], origin: str) -> None:
    for seed in SEEDS:
        db, _ = chosen(seed)
        stream = Stream.of(db, origin=origin, **options)
        assert list(check(db.stream(origin=origin, **options), stream.options)) == []


@asked
def test_every_fault_that_is_certain_is_seen(options: dict[str, Any]) -> None:
    seen = set()
    for seed in FEW:
        stream = Stream.of(chosen(seed)[0], **options)
        for fault in FAULTS:
            places = range(fault.size(stream) if fault.certain else 0)
            made = (fault.apply(stream, i) for i in random.Random(seed).sample(places, min(8, len(places))))
            for broken in (one for one in made if one is not None):
                assert next(check(broken, stream.options), None) is not None, (seed, fault.name)
                seen.add(fault.name)
    assert len(seen) > 25


@asked
def test_the_same_seed_makes_the_same_bytes(options: dict[str, Any]) -> None:
    for seed in FEW:
        sent = list(chosen(seed)[0].stream(**options))
        assert sent == list(chosen(seed)[0].stream(**options))
        assert sent == list(chosen(seed, **options)[0].stream())


# The truth


@asked
def test_a_replay_ends_in_the_truth(options: dict[str, Any]) -> None:
    transactions = 0
    for db, program in islice(unaltered(), len(SEEDS)):
        names = followed(db, program)
        history = {one.end_lsn: one for one in db.history()}
        tables = Tables()
        for done in Reader(options).transactions(sent(db, **options)):
            tables.apply(done)
            truth = history[done.end_lsn]
            assert (done.xid, done.commit_lsn) == (truth.xid, truth.commit_lsn)
            assert (done.commit_time, done.gid or truth.gid) == (truth.commit_time, truth.gid)
            assert replayed(tables, names) == as_sent(db, names, truth.tables)
            transactions += 1
        rows = {name: db.rows(table) for name, table in db.tables.items()}
        assert replayed(tables, names) == as_sent(db, names, rows)
    assert transactions > len(SEEDS)


def unaltered() -> Iterator[tuple[Scenario, Program]]:
    """Scenarios without ALTER TABLE, of which a stream does not tell what it does to rows."""
    for seed in range(1_000):
        db, program = chosen(seed)
        if not any(isinstance(step, Alter) for step in program.steps):
            yield db, program


def followed(db: Scenario, program: Program) -> dict[int, str]:
    """The tables, by OID, of which everything is sent."""
    whole = {
        one.name for one in program.tables if one.published and one.where is None and one.column_list is None
    }
    names = {}
    for name, table in db.tables.items():
        root = name if table.root is None else table.root.shape.full_name
        if root in whole and (table.root is None) == (db.publish_via_partition_root or not table.partitions):
            names[table.shape.oid] = name
    return names


def replayed(tables: Tables, names: dict[int, str]) -> dict[str, list[str]]:
    """The tables that have rows."""
    there = {names[oid]: table for oid, table in tables.items() if oid in names}
    return {name: sorted(map(str, table)) for name, table in there.items() if len(table)}


def as_sent(db: Scenario, names: dict[int, str], truth: dict[str, list[Any]]) -> dict[str, list[str]]:
    """The truth in the same form: with rows of partitions where they are sent."""
    found: dict[str, list[str]] = {}
    for name, rows in truth.items():
        root = db.tables[name].root
        to = root.shape.full_name if root is not None and db.publish_via_partition_root else name
        if rows and to in names.values() and not db.tables[name].partitions:
            found[to] = sorted([*found.get(to, []), *map(str, rows)])
    return found


# The same in other words


@asked
def test_binary_format_says_the_same(options: dict[str, Any]) -> None:
    differ = 0
    for seed in SEEDS:
        db, _ = chosen(seed)
        in_text, in_binary = ({**options, "binary": binary} for binary in (False, True))
        text, binary = Reader(in_text), Reader(in_binary)
        for one, other in zip(sent(db, **in_text), sent(db, **in_binary), strict=True):
            assert text.read(one.data) == binary.read(other.data)
            differ += one != other
    assert differ > len(SEEDS)


@asked
def test_a_stream_goes_on_behind_what_was_acknowledged(options: dict[str, Any]) -> None:
    resumed = 0
    for seed in SEEDS:
        db, _ = chosen(seed)
        full = sent(db, **options)
        everything = list(Reader(options).transactions(full))
        ends = [i for i, one in enumerate(full) if one.data[:1] in ENDS]
        for i in random.Random(seed).sample(ends, min(3, len(ends))):
            before, end_lsn = full[: i + 1], full[i].wal_start
            rest = sent(db, after_lsn=end_lsn, **options)
            assert all(one.wal_start > end_lsn for one in rest if one.data[:1] in ENDS)
            reader = Reader(options)
            assert [*reader.transactions(before), *reader.reconnected(rest)] == everything
            assert at_once(rest, options) == [lsn for lsn in at_once(full, options) if lsn > end_lsn]
            assert list(violations(Stream.of(db, **options).options, before, rest)) == []
            resumed += 1
    assert resumed > len(SEEDS)


def sent(db: Scenario, **options: Any) -> list[XLogData]:
    return [one for one in db.stream(**options) if isinstance(one, XLogData)]


def at_once(stream: Iterable[XLogData], options: dict[str, Any]) -> list[int]:
    """The LSNs of messages that are not transactional."""
    reader = Reader(options)
    read = ((one.wal_start, reader.read(one.data)) for one in stream)
    return [
        lsn for lsn, message in read if getattr(message, "flags", None) == 0 and hasattr(message, "prefix")
    ]


def violations(options: CheckOptions, before: Iterable[XLogData], rest: Iterable[XLogData]) -> Iterator[Any]:
    checker = Checker(
        options.proto_version,
        streaming=options.streaming,
        two_phase=options.two_phase,
        binary=options.binary,
        messages=options.messages,
    )
    yield from filter(None, map(checker.feed, before))
    checker.reconnect(options)
    yield from filter(None, map(checker.feed, rest))
