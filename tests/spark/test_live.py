"""Recordings of a running server, read with Spark, give the same tables as the server."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from logicalrep.recorder import Connected, RecorderOptions
from logicalrep.recording import Recording
from logicalrep.views import RESCUED, schema_versions
from tests.recorder import workload
from tests.recorder.lab import Lab, wait_until
from tests.truth import TrueTable, equals_typed
from tests.views.rows import Row, changes, expected_changes, in_order, replay, table, without

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly,  # `test_source` compares the data source with the views
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

IN_SPARK = {"types", "toast", "changing", "big", "full_identity", "parts"}
"""Names of the tables whose view `table` is also read with Spark."""


def true_tables(lab: Lab) -> dict[int, TrueTable]:
    """Return the published tables of the server, by OID, with their rows in text format."""
    found = {}
    for oid, (name, place) in lab.published().items():
        columns, values = lab._columns(oid, None)
        result = lab._table(f"SELECT {values} FROM {place}", 0)
        texts = [tuple(None if cell is None else cell.decode() for cell in row) for row in result]
        found[oid] = TrueTable(oid, name, tuple(columns), texts)
    return found


def record_while_it_changes(lab: Lab) -> None:
    """Record a snapshot of a server, and then streamed, prepared and rolled back transactions."""
    workload.create(lab)
    workload.work(lab, 1)
    workload.finish(lab, 1)
    options = RecorderOptions(streaming="parallel", two_phase=True)
    with lab.recording(options=options, snapshot=True, segment_bytes=20_000) as recording:
        recording.wait(Connected)
        workload.work(lab, 21)
        workload.finish(lab, 21)
        end = lab.lsn()
        wait_until(lambda: lab.confirmed_lsn() >= end)


def test_changes_and_tables_equal_the_servers(session: SparkSession, lab: Lab) -> None:
    record_while_it_changes(lab)
    expected = in_order(changes(lab.folder))
    assert [without(row, "position", "sequence", "incomplete") for row in expected] == [
        without(one.row, "incomplete") for one in expected_changes(lab.folder)
    ]
    operations = Counter(row["operation"] for row in expected)
    assert set(operations) == {"Snapshot", "Insert", "Update", "Delete", "Truncate"}
    reader = session.read.format("pgoutput")
    found: list[Row] = in_order(reader.load(str(lab.folder)).toArrow().to_pylist())
    assert found == expected
    of_table: dict[int, list[Row]] = {}
    for row in found:
        images = {key: None if row[key] is None else dict(row[key]) for key in ("before", "after")}
        of_table.setdefault(row["relation"]["oid"], []).append(row | images)
    recording = Recording(lab.folder)
    ends = [end for said in recording.metadata(recording.numbers) for end in said.ends]
    assert {"StreamCommit", "CommitPrepared", "RollbackPrepared"} <= {end.type for end in ends}
    assert max(len(end.segments) for end in ends) > 2
    names = {one.relation.oid: one.schema for one in schema_versions(recording.metadata(recording.numbers))}
    compared = set()
    for oid, true in true_tables(lab).items():
        if oid not in of_table:
            assert true.rows == [], true.name
            continue
        rows = [tuple(row.get(column) for column in true.columns) for row in replay(of_table[oid])]
        assert Counter(rows) == Counter(true.rows), true.name
        shape = names[oid]
        if shape.name in IN_SPARK:
            name = f"{shape.namespace}.{shape.name}"
            typed = reader.options(view="table", table=name).load(str(lab.folder)).toArrow()
        else:
            typed = table(lab.folder, shape.name)
        there = list(replay(in_order(typed.to_pylist())))
        fields = [
            field for field in typed.schema.field("after").type if field.name in (*true.columns, RESCUED)
        ]
        assert equals_typed(true, pa.Table.from_pylist(there, pa.schema(fields))), true.name
        compared.add(shape.name)
    assert compared > IN_SPARK
    assert len(compared) > 12
