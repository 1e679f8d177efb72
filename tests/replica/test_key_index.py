"""The index of keys finds the same rows as a search of the data files, whatever happens to its files."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from logicalrep.apply.data_files import DataFiles
from logicalrep.apply.rows import key_index
from logicalrep.apply.rows.key_index import Keys, hash_keys
from logicalrep.recording import locate
from logicalrep.targets import DataFile
from logicalrep.targets.delta import DeltaFormat

ROWS = 3000
VALUES: dict[pa.DataType, Callable[[int], Any]] = {
    pa.int16(): lambda number: number % 300,
    pa.int32(): lambda number: number - 1500,
    pa.int64(): lambda number: number * 2**40,
    pa.date32(): lambda number: number,
    pa.timestamp("us"): lambda number: number * 10**9,
    pa.decimal128(20, 2): lambda number: Decimal(number) / 100,
    pa.float64(): lambda number: float("nan") if number == 7 else number / 3,
    pa.bool_(): lambda number: bool(number % 2),
    pa.string(): lambda number: "ä" * (number % 20) + str(number),
    pa.binary(): lambda number: bytes(number % 9),
}


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MIN_ROWS", 1)


def make(folder: Path, columns: dict[str, pa.Array]) -> tuple[DataFiles, DataFile]:
    """Write a data file with columns; return it, and the files of its table."""
    table = DeltaFormat().create(locate(folder / "t"), pa.table(columns).schema, {})
    table.set_deletes_rows(True)
    table.commit(DataFiles(table).write(pa.table(columns).to_batches(max_chunksize=1000)), [])
    files = DataFiles(table)
    return files, next(iter(files))


def indexes(folder: Path) -> list[Path]:
    return sorted((folder / "t" / "_logicalrep_index").iterdir())


@pytest.mark.parametrize("type_", VALUES, ids=str)
def test_rows_are_found_by_keys_of_each_type(type_: pa.DataType, tmp_path: Path) -> None:
    numbers = random.Random(1).sample(range(ROWS), ROWS)
    texts = [None if number == 5 else VALUES[type_](number) for number in numbers]
    values = pa.array(texts, type_)
    files, file = make(tmp_path, {"k": values, "v": pa.array(numbers)})
    wanted = pa.array([VALUES[type_](number) for number in (*range(40, 60), 7, ROWS + 5)] + [None], type_)
    keys = Keys(["k"], [wanted])
    found = keys.find(files, file)
    assert found is not None
    searched = {*map(repr, wanted.to_pylist())}
    expected = {row for row, text in enumerate(map(repr, values.to_pylist())) if text in searched}
    for row, key in zip(found.rows.tolist(), found.keys.tolist(), strict=True):
        if key >= 0:
            assert repr(values[row].as_py()) == repr(wanted[key].as_py())
    assert {*found.rows.tolist()} == expected  # with NULL, which may be any key
    assert np.flatnonzero(found.keys < 0).tolist() == np.flatnonzero(found.rows == numbers.index(5)).tolist()
    assert keys.are_exact == (type_ in [pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us")])


def test_a_key_of_several_columns(tmp_path: Path) -> None:
    a, b = pa.array([1, 1, 2, 2, None]), pa.array(["x", "y", "x", "", "y"])
    files, file = make(tmp_path, {"a": a, "b": b})
    found = Keys(["a", "b"], [pa.array([2, 1, 2]), pa.array(["x", "x", "y"])]).find(files, file)
    assert found is not None
    assert (found.rows.tolist(), found.keys.tolist()) == ([0, 2, 4], [1, 0, -1])


@pytest.mark.parametrize("count", [1, key_index._BLOCK - 1, key_index._BLOCK, key_index._BLOCK + 1, ROWS])
def test_one_key_of_many_rows(count: int, tmp_path: Path) -> None:
    """Versions of a row that have ended have its key; they fill several blocks."""
    files, file = make(tmp_path, {"k": pa.array([8] * count + [*range(10)] * 300)})
    found = Keys(["k"], [pa.array([8])]).find(files, file)
    assert found is not None
    assert found.rows.tolist() == [*range(count), *range(count + 8, count + 3000, 10)]


@given(st.lists(st.binary(max_size=30), min_size=1), st.lists(st.binary(max_size=9), min_size=1))
def test_different_keys_have_different_hashes(first: list[bytes], second: list[bytes]) -> None:
    keys = [*zip(first, second, strict=False)]
    hashes = hash_keys([pa.array(one, pa.binary()) for one in zip(*keys, strict=True)])
    assert len({*hashes.tolist()}) == len({*keys})
    sliced = hash_keys([pa.array([b"x", *one], pa.binary())[1:] for one in zip(*keys, strict=True)])
    assert sliced.tolist() == hashes.tolist()


def flip(index: Path, at: float) -> None:
    data = bytearray(index.read_bytes())
    data[int(at * (len(data) - 1))] ^= 0x10
    index.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda index: index.write_bytes(b""),
    "cut off": lambda index: index.write_bytes(index.read_bytes()[:-4]),
    "a header only": lambda index: index.write_bytes(index.read_bytes()[:40]),
    "longer": lambda index: index.write_bytes(index.read_bytes() + bytes(4)),
    "zeros": lambda index: index.write_bytes(index.read_bytes()[:48] + bytes(index.stat().st_size - 48)),
    "other bytes": lambda index: index.write_bytes(random.Random(1).randbytes(index.stat().st_size)),
} | {
    f"flipped at {at}": lambda index, at=at: flip(index, at)
    for at in (0.0, 0.0005, 0.01, 0.3, 0.6, 0.7, 0.97)
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_made_anew(damage: str, tmp_path: Path) -> None:
    numbers = random.Random(2).sample(range(ROWS), ROWS)
    files, file = make(tmp_path, {"k": pa.array(numbers)})
    keys = Keys(["k"], [pa.array(range(ROWS))])
    whole = keys.find(files, file)
    (index,) = indexes(tmp_path)
    content = index.read_bytes()
    DAMAGES[damage](index)
    found = keys.find(files, file)
    assert whole is not None
    assert found is not None
    assert found.keys.tolist() == whole.keys.tolist() == numbers
    (index,) = indexes(tmp_path)
    assert index.read_bytes() == content


def test_the_index_of_another_file_or_key_is_not_used(tmp_path: Path) -> None:
    files, file = make(tmp_path, {"k": pa.array(range(ROWS)), "l": pa.array(range(ROWS, 0, -1))})
    keys = [Keys([name], [pa.array([9])]).find(files, file) for name in ("k", "l")]
    assert [one.rows.tolist() for one in keys if one is not None] == [[9], [ROWS - 9]]
    first, second = indexes(tmp_path)
    other_files, other = make(tmp_path / "other", {"k": pa.array(range(ROWS - 1, -1, -1))})
    found = Keys(["k"], [pa.array([9])]).find(other_files, other)
    (index,) = indexes(tmp_path / "other")
    index.write_bytes(first.read_bytes())  # data files differ in size
    again = Keys(["k"], [pa.array([9])]).find(other_files, other)
    assert second != first
    assert found is not None
    assert again is not None
    assert found.rows.tolist() == again.rows.tolist() == [ROWS - 10]


def test_indexes_of_files_that_are_gone_are_removed(tmp_path: Path) -> None:
    files, file = make(tmp_path, {"k": pa.array(range(ROWS))})
    assert Keys(["k"], [pa.array([9])]).find(files, file) is not None
    (old,) = indexes(tmp_path)
    table = files._table
    table.commit(files.write([pa.record_batch([range(ROWS + 1)], names=["k"]).cast(files.schema)]), None)
    files = DataFiles(table)
    found = Keys(["k"], [pa.array([ROWS])]).find(files, next(iter(files)))
    assert found is not None
    assert found.rows.tolist() == [ROWS]
    assert old not in indexes(tmp_path)
    assert len(indexes(tmp_path)) == 1


def test_without_space_there_is_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, file = make(tmp_path, {"k": pa.array(range(ROWS))})
    (tmp_path / "t" / "_logicalrep_index").write_text("a file where the folder would be")
    assert Keys(["k"], [pa.array([9])]).find(files, file) is None
