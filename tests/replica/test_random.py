"""Replicas follow random changes, in micro-batches and commits of any size, with crashes at commits."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from logicalrep.replica import replica_tables
from logicalrep.targets import registry
from tests.effort import examples
from tests.kills import Killed, Kills
from tests.replica.simulator import Row, SimulatedServer
from tests.replica.tables import apply, open_table, read_table, rescued_last, row_texts
from tests.targets.formats import FORMATS
from tests.truth import equals_typed

VALUES: dict[str, list[str | None]] = {
    "date": ["2020-01-01", "2020-01-02", "2020-01-03", "infinity", "-infinity"],
    "int4": ["1", "2", "-3", None],
    "int8": ["1", "2", "5000000000", None],
    "text": ["", "a", "b", "NULL", None],
    "float8": ["0", "-0", "NaN", "1.5", None],
    "_int4": ["{}", "{1,NULL}", "{{1}}", "[0:0]={1}", None],
}
"""Values in text format, by type name. Values that Arrow cannot represent become rescued values."""

NEXT_TYPE = {"int4": "int8", "int8": "text"}
"""Type to which a column can be retyped without changing the text of its values, by old type."""


KINDS = ("insert", "update", "delete", "truncate", "add", "drop", "rename", "retype", "commit")
"""Kinds of random changes."""


@pytest.mark.parametrize("made", FORMATS)
@given(data=st.data(), history=st.booleans(), identity=st.sampled_from(["key", "full", "none"]))
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
def test_a_replica_follows_random_changes(
    made: str, data: st.DataObject, history: bool, identity: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "format_of", lambda target: FORMATS[made].format)
        keep_files(patch)
        follow_random_changes(FORMATS[made].table, data, history, identity)


def keep_files(patch: pytest.MonkeyPatch) -> None:
    """Keep data files, which are small here, until most rows are deleted, and look rows up by index."""
    patch.setattr("logicalrep.apply.data_files._DELETED_SHARE", 0.9)
    patch.setattr("logicalrep.apply.data_files._VECTOR_BYTES_PER_ROW", 0)
    patch.setattr("logicalrep.apply.rows.key_index.MIN_ROWS", 1)


def follow_random_changes(table: type, data: st.DataObject, history: bool, identity: str) -> None:
    columns = {"k": "date", "i": "int4", "t": "text", "f": "float8", "a": "int4[]"}
    server = SimulatedServer(1, "t", columns, {"key": 1, "full": len(columns), "none": 0}[identity])
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(data.draw(st.integers(1, 4), label="batches")):
            for _ in range(data.draw(st.integers(1, 12), label="changes")):
                if data.draw(st.integers(0, 9), label="snapshot") == 9:
                    send_snapshot(server, data, identity)
                else:
                    change(server, data, identity)
            changes = server.take()
            if changes.num_rows:
                run(table, Path(folder), changes, data, history)
        if not server.states:
            return
        found = read_table(replica_tables(folder)[1].place)
    if history:
        compare_history(server, found)
    elif server.changes == [] and list(server.states.values())[-1][0] == list(server.columns):
        assert equals_typed(server.truth, rescued_last(found))


def send_snapshot(server: SimulatedServer, data: st.DataObject, identity: str) -> None:
    """Make some changes that are not sent; then send a snapshot, and changes as a part of it."""
    sent = len(server.changes), server.position, dict(server.states)
    for _ in range(data.draw(st.integers(0, 4), label="lost")):
        change(server, data, identity, ["insert", "update", "delete"])
    del server.changes[sent[0] :]
    server.position, server.states = sent[1:]
    with server.snapshot():
        for _ in range(data.draw(st.integers(0, 4), label="changes")):
            change(server, data, identity, ["insert", "update", "delete", "truncate", "add", "retype"])


def change(
    server: SimulatedServer, data: st.DataObject, identity: str, allowed: Container[str] = KINDS
) -> None:
    """Make a random change to the simulated server that a real server would allow."""
    kinds = ["insert", "insert", "truncate", "add", "drop", "retype", "commit"]
    if server.rows and identity != "none":
        kinds += ["update"] * 6 + ["delete"] * 2 + ["rename"]
    kind = data.draw(st.sampled_from([one for one in kinds if one in allowed]), label="change")
    names = list(server.columns)
    others = [name for name in names if name != "k"]
    if kind == "commit":
        server.commit()
    elif kind == "truncate":
        if data.draw(st.integers(0, 2)) == 0:
            server.truncate()
    elif kind == "insert":
        row = {name: data.draw(value_of(server, name)) for name in names}
        if identity != "key" or row["k"] not in [one["k"] for one in server.rows]:
            server.insert(*row.values())
    elif kind == "delete":
        server.delete(data.draw(st.integers(0, len(server.rows) - 1)))
    elif kind == "update":
        at = data.draw(st.integers(0, len(server.rows) - 1))
        changed = data.draw(st.sets(st.sampled_from(names)))
        values = {name: data.draw(value_of(server, name)) for name in sorted(changed)}
        taken = [one["k"] for row, one in enumerate(server.rows) if row != at]
        if identity != "key" or values.get("k", server.rows[at]["k"]) not in taken:
            toasted = tuple(name for name in ("t", "a") if name in names and data.draw(st.booleans()))
            server.update(at, toasted, **values)
    elif kind == "add":
        name = f"new{server.position}_{len(names)}"
        if name not in names:
            server.add_column(name, data.draw(st.sampled_from(["int4", "text"])))
    elif kind == "drop" and len(others) > 1:
        server.drop_column(data.draw(st.sampled_from(others)))
    elif kind == "rename" and len(names) > 2:
        server.update(0)  # a rename is inferred only without another schema change
        server.rename_column(
            data.draw(st.sampled_from([name for name in names[:-1] if name != "k"])),
            f"renamed{server.position}",
        )
        server.update(0)
    elif kind == "retype":
        name = data.draw(st.sampled_from(names))
        server.columns[name] = NEXT_TYPE.get(server.columns[name], server.columns[name])


def value_of(server: SimulatedServer, name: str) -> st.SearchStrategy[str | None]:
    type_ = server.columns[name]
    return st.sampled_from(VALUES["_int4" if type_ == "int4[]" else type_])


def run(table: type, folder: Path, changes: pa.Table, data: st.DataObject, history: bool) -> None:
    """Apply changes after up to two simulated crashes; each attempt gets Arrow batches of a random size."""
    rows = data.draw(st.sampled_from([1, 2, 5, 100]), label="rows")
    attempts = [*data.draw(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=2)), None]
    for kill in attempts:
        size = data.draw(st.sampled_from([1, 3, 100]), label="size")
        with pytest.MonkeyPatch.context() as patch:
            if kill is not None:
                patch.setattr(table, "commit", killing(table, *kill))
            try:
                batches = changes.to_batches(max_chunksize=size)
                apply(batches, folder, history=history, max_rows=rows)
            except Killed:
                continue
    done = open_table(replica_tables(folder)[1].place).version
    apply(changes.to_batches(), folder, history=history, max_rows=rows)
    # Applying a batch again changes nothing.
    assert open_table(replica_tables(folder)[1].place).version == done


def killing(table: Any, commits: int, after: bool) -> Any:
    """Return a replacement for a table's `commit` that simulates a crash before or after its n-th call."""
    return Kills(commits).watch(table.commit, before=not after, after=after)


def compare_history(server: SimulatedServer, found: pa.Table) -> None:
    """Check that the row versions valid at each position equal the rows of the server at that position."""
    versions = [(row["__START_AT"], row["__END_AT"], row_texts(row)) for row in found.to_pylist()]
    for position, (columns, rows) in server.states.items():
        current = [
            text
            for start, end, text in versions
            if start["position"] <= position and (end is None or end["position"] > position)
        ]
        assert count_rows(current, columns) == count_rows(rows, columns), position


def count_rows(rows: list[Row], columns: list[str]) -> Counter[tuple[str | None, ...]]:
    return Counter(tuple(row.get(name) for name in columns) for row in rows)
