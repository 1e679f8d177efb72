"""Changes are split into chunks where the rules of `split_changes` say, whatever the Arrow batches are."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from logicalrep.apply.chunks import split_changes
from tests.effort import examples
from tests.replica.changes_from_rows import from_rows
from tests.replica.simulator import SimulatedServer

ACTIONS = ["insert", "insert", "large", "delete", "truncate", "alter", "add", "commit", "snapshot"]
TABLES = st.lists(st.lists(st.sampled_from(ACTIONS), max_size=20), min_size=1, max_size=2)


@given(
    tables=TABLES,
    max_rows=st.sampled_from([1, 2, 5, 100]),
    max_bytes=st.sampled_from([1, 4, 62, 1000]),
    batch_rows=st.sampled_from([1, 3, 100]),
)
@settings(max_examples=examples(100))
def test_chunks_end_where_the_rules_say(
    tables: list[list[str]], max_rows: int, max_bytes: int, batch_rows: int
) -> None:
    for oid, actions in enumerate(tables):
        changes = changes_of(oid, actions)
        batches = changes.to_batches(max_chunksize=batch_rows)
        chunks = split_changes(chain.from_iterable(map(from_rows, batches)), max_rows, max_bytes)
        found = [(one.replaced_by, one.changes["position"].to_pylist()) for one in chunks]
        assert found == split_one_by_one(changes.to_pylist(), max_rows, max_bytes)


def changes_of(oid: int, actions: list[str]) -> pa.Table:
    """Return the changes of a table that is changed by these actions."""
    server = SimulatedServer(oid, "t", {"k": "int4", "v": "text"}, 1)
    for action in actions:
        values = ["1" * (30 if action == "large" else 1)] * len(server.columns)
        match action:
            case "insert" | "large":
                server.insert(*values)
            case "delete" if server.rows:
                server.delete(0)
            case "truncate":
                server.truncate()
            case "alter":
                server._send("Schema")
            case "add":
                server.add_column(f"c{len(server.columns)}", "text")
            case "commit":
                server.commit()
            case "snapshot":
                with server.snapshot():
                    server.insert(*values)
    return server.take()


def split_one_by_one(changes: list[dict[str, Any]], max_rows: int, max_bytes: int) -> list[Any]:
    """Return the expected chunks: the transaction that truncates the table (or None), and positions."""
    chunks: list[Any] = []
    truncated = last_kind = None
    size = 0
    for change in changes:
        operation, transaction = change["operation"], (change["commit_lsn"], change["xid"])
        of_table = change["relation"]["oid"], transaction
        if operation in ("Truncate", "Schema"):
            truncated = of_table if operation == "Truncate" else None
        replaced_by = transaction if truncated == of_table else None
        kind = (of_table[0], replaced_by, operation == "Schema", change["columns"], change["key_columns"])
        values = [text for name in ("before", "after") for _, text in change[name] or ()]
        bytes_ = sum(len(text) for text in values if text is not None)
        begins = operation in ("Truncate", "Schema") or kind != last_kind
        if begins or len(chunks[-1][1]) == max_rows or size + bytes_ > max_bytes:
            chunks.append((replaced_by, []))
            size = 0
        chunks[-1][1].append(change["position"])
        size += bytes_
        last_kind = kind
    return chunks
