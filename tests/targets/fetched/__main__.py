"""Compare what Polars and DuckDB read from a replica of a test recording with the server's tables.

`make readers` installs them, and runs this program: for Delta and Iceberg tables, with vectors or position
deletes and without. It exits with code 1 if a table differs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal
from uuid import UUID

import duckdb
import polars  # type: ignore[import-not-found]
import pyarrow as pa

from logicalrep.recording import record_capture_file
from logicalrep.replica import replicate, use_iceberg
from tests.replica.tables import different_tables, read_table
from tests.targets.formats import iceberg_table
from tests.truth import CAPTURES, true_tables

SEGMENT_BYTES: Final = 20_000
"""Size of a segment. It is small, so that tables have several commits."""

UPDATES: Final[tuple[Literal["vectors", "rewrite"], ...]] = ("vectors", "rewrite")


def main() -> int:
    truth = [one for one in true_tables("pg18") if one.rows]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="logicalrep-readers-") as name:
        recording = Path(name, "recording")
        record_capture_file(CAPTURES / "pg18_p4_par_2pc.jsonl.gz", recording, segment_bytes=SEGMENT_BYTES)
        for (table_format, reader), read in READERS.items():
            for updates in UPDATES:
                target = Path(name, f"{table_format}-{updates}")
                if table_format == "iceberg" and not target.exists():
                    use_iceberg(target)
                replicate(recording, target, updates=updates)
                different = different_tables(target, truth, partial(typed, read))
                print(f"{reader}, {table_format}, {updates}: {len(different)} of {len(truth)} tables differ")
                print(*different, sep="\n", end="\n" if different else "")
                failed += len(different)
    return int(failed > 0)


def read_delta_with_polars(place: str) -> pa.Table:
    return polars.read_delta(place).to_arrow()


def read_iceberg_with_polars(place: str) -> pa.Table:
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # the other one needs a package of its own
    return polars.scan_iceberg(iceberg_table(Path(place))).collect().to_arrow()


def read_delta_with_duckdb(place: str) -> pa.Table:
    return query(f"SELECT * FROM delta_scan('{place}')", "delta")


def read_iceberg_with_duckdb(place: str) -> pa.Table:
    metadata = iceberg_table(Path(place)).metadata_location.removeprefix("file://")
    return query(f"SELECT * FROM iceberg_scan('{metadata}')", "avro", "iceberg")


READERS: Final = {
    ("delta", "Polars"): read_delta_with_polars,
    ("delta", "DuckDB"): read_delta_with_duckdb,
    ("iceberg", "Polars"): read_iceberg_with_polars,
    ("iceberg", "DuckDB"): read_iceberg_with_duckdb,
}
"""Functions that read the table at a path, by table format and name of the reader."""


def query(sql: str, *extensions: str) -> pa.Table:
    """Return the result of a query of DuckDB with extensions, whose times are in UTC."""
    with duckdb.connect() as connection:
        for name in extensions:
            spec = find_spec(f"duckdb_extension_{name}")
            assert spec is not None
            assert spec.origin is not None
            (file,) = Path(spec.origin).parent.rglob("*.duckdb_extension")
            connection.execute(f"LOAD '{file}'")
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(sql).to_arrow_table()


def typed(read: Callable[[str], pa.Table], place: str, _: None) -> pa.Table:
    """Return a table as a reader reads it, with the types of our own reader: only the values count."""
    rows, schema = read(place), read_table(place).schema
    assert rows.column_names == schema.names, f"{place}: {rows.column_names}"
    arrays = [
        pa.array([value_of(value, field.type) for value in rows[field.name].to_pylist()], field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def value_of(value: Any, type_: pa.DataType) -> Any:
    """Return a reader's value as a value of an Arrow type: maps as lists of pairs, uuids as bytes."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        pairs = value.items() if isinstance(value, dict) else value
        return [tuple(one.values()) if isinstance(one, dict) else one for one in pairs]
    if pa.types.is_list(type_):
        return [value_of(one, type_.value_type) for one in value]
    is_uuid = isinstance(value, str) and not pa.types.is_string(type_)
    return UUID(value).bytes if is_uuid else value


if __name__ == "__main__":
    sys.exit(main())
