"""Only `pgoutput._arrays` builds Arrow arrays from buffers and reads the buffers of Arrow arrays."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pgoutput import _arrays

STRINGS = [b"", b"one", None, b"three", b"\xff"]


def test_only_one_module_knows_the_buffers_of_arrays() -> None:
    sources = (Path(__file__).parents[2] / "runtime").rglob("*.py")
    pattern = re.compile(r"Array\.from_buffers|\.buffers\(\)")
    assert [path.name for path in sources if pattern.search(path.read_text("utf-8"))] == ["_arrays.py"]


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("start", range(6))
def test_offsets_divide_the_bytes_into_values(type_: pa.DataType, start: int) -> None:
    array = pa.array(STRINGS, type_)[start:]
    offsets, content = _arrays.value_offsets(array).tolist(), _arrays.value_bytes(array).tobytes()
    values = [content[begin:end] for begin, end in pairwise(offsets)]
    assert values == [value or b"" for value in STRINGS[start:]]


def test_an_array_is_built_from_its_buffers() -> None:
    valid = np.array([True, False, True])
    offsets = np.array([0, 1, 1, 3], np.int32)
    array = _arrays.from_buffers(pa.string(), 3, offsets, b"abc", valid=_arrays.mask_bits(valid))
    array.validate(full=True)
    assert array.to_pylist() == ["a", None, "bc"]
    assert (array.null_count, array.offset) == (1, 0)
    assert _arrays.from_buffers(pa.int64(), 2, np.array([5, 6])).to_pylist() == [5, 6]


def test_the_buffers_of_a_slice_come_with_its_offset() -> None:
    offset, (valid, _, data) = _arrays.raw_buffers(pa.array(STRINGS, pa.binary())[3:])
    assert offset == 3
    assert valid is not None
    assert bytes(data or b"") == b"onethree\xff"


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100])
def test_boolean_arrays(length: int) -> None:
    mask = np.arange(length) % 3 == 0
    assert _arrays.boolean_array(mask).to_pylist() == mask.tolist()
