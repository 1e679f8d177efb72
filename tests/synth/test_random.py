"""Properties of random scenarios with the options of every protocol version."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import pytest

from logicalrep._servers import MAJOR_VERSIONS
from logicalrep.messages import XLogData
from logicalrep.stream import Tables
from logicalrep.stream.check import Checker, CheckOptions, check
from logicalrep.synth import Scenario
from logicalrep.synth.programs import Program
from logicalrep.testing import FAULTS, Stream
from tests.synth.random_scenarios import OPTION_SETS, random_scenario
from tests.synth.text_reader import TextReader

SEEDS = range(100)
FEW = SEEDS[::9]
ENDS = (b"C", b"c", b"P", b"p", b"K", b"r")

each_option_set = pytest.mark.parametrize(
    "options", OPTION_SETS, ids=lambda options: " ".join(map(str, options.values()))
)


@each_option_set
@pytest.mark.parametrize("origin", ["any", "none"])
def test_streams_violate_no_rule(options: dict[str, Any], origin: str) -> None:
    for seed in SEEDS:
        db, _ = random_scenario(seed)
        stream = Stream.of(db, origin=origin, **options)
        assert list(check(db.stream(origin=origin, **options), stream.options)) == []


@each_option_set
def test_every_certain_fault_is_detected(options: dict[str, Any]) -> None:
    seen = set()
    for seed in FEW:
        stream = Stream.of(random_scenario(seed)[0], **options)
        for fault in FAULTS:
            places = range(fault.size(stream) if fault.certain else 0)
            made = (fault.apply(stream, i) for i in random.Random(seed).sample(places, min(8, len(places))))
            for broken in (one for one in made if one is not None):
                assert next(check(broken, stream.options), None) is not None, (seed, fault.name)
                seen.add(fault.name)
    assert len(seen) > 25


@each_option_set
def test_output_is_deterministic_for_a_seed(options: dict[str, Any]) -> None:
    for seed in FEW:
        sent = list(random_scenario(seed)[0].stream(**options))
        assert sent == list(random_scenario(seed)[0].stream(**options))
        assert sent == list(random_scenario(seed, **options)[0].stream())


@pytest.mark.parametrize("server", MAJOR_VERSIONS)
def test_streams_of_each_server_violate_no_rule_and_lead_to_the_expected_rows(server: int) -> None:
    empty = 0
    for options in OPTION_SETS:
        try:
            Scenario(server=server, **options)
        except ValueError:
            continue
        for seed in FEW:
            db, program = random_scenario(seed, server=server, **options)
            stream = Stream.of(db)
            assert list(check(db.stream(), stream.options)) == []
            tags = b"".join(data[:1] for data in stream.messages)
            empty += len(re.findall(b"BO?C", tags))
            assert server >= 11 or b"T" not in tags
            if not any(step.method in ("alter", "truncate") for step in program.steps):
                tables, names = Tables(), complete_tables(db, program)
                for done in TextReader(options).transactions(sent(db)):
                    tables.apply(done)
                rows = {name: db.rows(table) for name, table in db.tables.items()}
                assert replayed(tables, names) == published_rows(db, names, rows)
    assert (empty > 0) == (server < 15)


# Expected rows


@each_option_set
def test_a_replay_leads_to_the_expected_rows(options: dict[str, Any]) -> None:
    transactions = 0
    for db, program in islice(without_alter_table(), len(SEEDS)):
        names = complete_tables(db, program)
        history = {one.end_lsn: one for one in db.history()}
        tables = Tables()
        for done in TextReader(options).transactions(sent(db, **options)):
            tables.apply(done)
            expected = history[done.end_lsn]
            assert (done.xid, done.commit_lsn) == (expected.xid, expected.commit_lsn)
            assert (done.commit_time, done.gid or expected.gid) == (expected.commit_time, expected.gid)
            assert replayed(tables, names) == published_rows(db, names, expected.tables)
            transactions += 1
        rows = {name: db.rows(table) for name, table in db.tables.items()}
        assert replayed(tables, names) == published_rows(db, names, rows)
    assert transactions > len(SEEDS)


def without_alter_table() -> Iterator[tuple[Scenario, Program]]:
    """Yield random scenarios without ALTER TABLE, whose effect on existing rows a stream does not show."""
    for seed in range(1_000):
        db, program = random_scenario(seed)
        if not any(step.method == "alter" for step in program.steps):
            yield db, program


def complete_tables(db: Scenario, program: Program) -> dict[int, str]:
    """Return the names of the tables whose rows and columns are all published, by OID."""
    whole = {
        one.name
        for one in program.tables
        if one.published
        and (one.where, one.column_list) == (None, None)
        and (one.generated is None or db.publish_generated_columns == "stored")
    }
    names = {}
    for name, table in db.tables.items():
        root = name if table.root is None else table.root.definition.full_name
        if root in whole and (table.root is None) == (db.publish_via_partition_root or not table.partitions):
            names[table.definition.oid] = name
    return names


def replayed(tables: Tables, names: dict[int, str]) -> dict[str, list[str]]:
    """Return the replayed rows as sorted text, by table name, without empty tables."""
    there = {names[oid]: table for oid, table in tables.items() if oid in names}
    return {name: sorted(map(str, table)) for name, table in there.items() if len(table)}


def published_rows(
    db: Scenario, names: dict[int, str], expected: Mapping[str, list[Any]]
) -> dict[str, list[str]]:
    """Return the expected rows as sorted text, by name of the table in the rows' Relation message."""
    found: dict[str, list[str]] = {}
    for name, rows in expected.items():
        root = db.tables[name].root
        to = root.definition.full_name if root is not None and db.publish_via_partition_root else name
        if rows and to in names.values() and not db.tables[name].partitions:
            found[to] = sorted([*found.get(to, []), *map(str, rows)])
    return found


# Binary format and resumption


@each_option_set
def test_binary_format_has_the_same_values(options: dict[str, Any]) -> None:
    differ = 0
    for seed in SEEDS:
        db, _ = random_scenario(seed)
        in_text, in_binary = ({**options, "binary": binary} for binary in (False, True))
        text, binary = TextReader(in_text), TextReader(in_binary)
        for one, other in zip(sent(db, **in_text), sent(db, **in_binary), strict=True):
            assert text.read(one.data) == binary.read(other.data)
            differ += one != other
    assert differ > len(SEEDS)


@each_option_set
def test_a_stream_resumes_after_the_acknowledged_lsn(options: dict[str, Any]) -> None:
    resumed = 0
    for seed in SEEDS:
        db, _ = random_scenario(seed)
        full = sent(db, **options)
        everything = list(TextReader(options).transactions(full))
        ends = [i for i, one in enumerate(full) if one.data[:1] in ENDS]
        for i in random.Random(seed).sample(ends, min(3, len(ends))):
            before, end_lsn = full[: i + 1], full[i].wal_start
            rest = sent(db, after_lsn=end_lsn, **options)
            assert all(one.wal_start > end_lsn for one in rest if one.data[:1] in ENDS)
            reader = TextReader(options)
            assert [*reader.transactions(before), *reader.transactions_after_reconnect(rest)] == everything
            assert non_transactional_lsns(rest, options) == [
                lsn for lsn in non_transactional_lsns(full, options) if lsn > end_lsn
            ]
            assert list(violations(Stream.of(db, **options).options, before, rest)) == []
            resumed += 1
    assert resumed > len(SEEDS)


def sent(db: Scenario, **options: Any) -> list[XLogData]:
    return [one for one in db.stream(**options) if isinstance(one, XLogData)]


def non_transactional_lsns(stream: Iterable[XLogData], options: dict[str, Any]) -> list[int]:
    """Return the envelope LSNs of non-transactional logical messages."""
    reader = TextReader(options)
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
