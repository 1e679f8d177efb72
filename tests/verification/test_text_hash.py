"""The hash of texts equals the server's."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from logicalrep import compiled
from logicalrep.verification.source_rows import _DIGESTED, _HASHED
from logicalrep.verification.text_hash import hash_texts, md5_hashes
from tests.server import VERSION, Server

TEXTS = [*("é😀"[: n % 3] + "x" * n + "\t'" for n in range(60)), "", "y" * 5000]


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize(("sql", "function"), [(_HASHED, hash_texts), (_DIGESTED, md5_hashes)])
def test_hashes_equal_those_of_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, sql: str, function: object, pure: bool
) -> None:
    if sql == _HASHED and VERSION < 11:
        pytest.skip("hashtextextended: since PostgreSQL 11")
    if pure:
        monkeypatch.setattr(compiled, "kernel", None)
    query = f"SELECT {sql.format('t')} FROM unnest(%s::text[]) WITH ORDINALITY AS u (t, n) ORDER BY n"
    with server.connect() as connection:
        rows = connection.execute(query.encode(), [TEXTS]).fetchall()
    expected = np.array([row[0] for row in rows], np.int64).view(np.uint64)
    texts = pa.array(["before", *TEXTS, "behind"])[1:-1]
    assert callable(function)
    assert function(texts).tolist() == expected.tolist()
    assert function(texts[:0]).tolist() == []
