"""The text of rows equals the server's."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from logicalrep import compiled
from logicalrep.verification.row_texts import ColumnTexts, record_texts
from tests.effort import examples
from tests.server import Server

TEXTS = ["", *map(chr, range(1, 256)), "a b", '"\\"', "NULL", None, "x,y", "(", "é\u2003", "😀", "plain"]


@pytest.mark.parametrize("pure", [False, True])
def test_rows_of_texts_equal_those_of_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, pure: bool
) -> None:
    if pure:
        monkeypatch.setattr(compiled, "kernel", None)
    query = "SELECT ROW(t, n, t)::text FROM unnest(%s::text[]) WITH ORDINALITY AS u (t, n) ORDER BY n"
    with server.connect() as connection:
        expected = [row[0] for row in connection.execute(query.encode(), [TEXTS]).fetchall()]
    texts = pa.array(["before", *TEXTS, "behind"], pa.string())[1:-1]
    numbers = pa.array(range(1, len(TEXTS) + 1), pa.int64())
    column = ColumnTexts(texts, texts, {})
    columns = [column, ColumnTexts(numbers, numbers.cast(pa.string()), {}), column]
    assert record_texts(columns, len(TEXTS)).to_pylist() == expected
    plain = pa.array(["a", None])
    assert record_texts([ColumnTexts(plain, plain, {})], 2).to_pylist() == ["(a)", "()"]


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(*[st.none() | st.text('ab "\\\\,(é', max_size=40)] * 3), max_size=30),
    st.integers(0, 3),
)
def test_kernel_and_arrow_write_the_same_rows(rows: list[tuple[str | None, ...]], first: int) -> None:
    arrays = [pa.array([row[at] for row in rows], pa.string())[first:] for at in range(3)]
    columns = [ColumnTexts(array, array, {}) for array in arrays]
    numbers = pa.array(range(len(rows)), pa.int64())[first:]
    columns.append(ColumnTexts(numbers, numbers.cast(pa.string()), {}))
    texts = record_texts(columns, len(numbers))
    texts.validate(full=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "kernel", None)
        assert texts.to_pylist() == record_texts(columns, len(numbers)).to_pylist()
