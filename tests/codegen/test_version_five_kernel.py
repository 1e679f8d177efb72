"""The kernel of a new protocol version is generated from YAML only."""

from __future__ import annotations

from pathlib import Path

import pytest

import hatch_build
from logicalrep import compiled
from tests.codegen.derived import five, generate, run_python


@pytest.mark.nightly  # `make specs` compiles kernels of other specs too
@pytest.mark.skipif(compiled.kernel is None, reason=f"logicalrep runs {compiled.HOW}")
def test_the_kernel_supports_the_new_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "-O0")  # compiles three times as fast
    out = generate(tmp_path, five)
    hatch_build.build(out / "logicalrep/_kernel.pyx", out / "logicalrep")
    run_python(
        out,
        """
        from logicalrep import compiled
        from logicalrep.errors import DecodeError, EncodeError
        from logicalrep.messages import Commit, InsertBatch, Counters, CounterState, Truncate, TruncateOption

        functions = vars(compiled.kernel)
        assert (v_new.decode, v_new.encode) == (functions[f"decode_v{NEW}"], functions[f"encode_v{NEW}"])
        commit = Commit(commit_lsn=1, end_lsn=2, commit_time=3, flush_lsn=4)
        truncate = Truncate(options=TruncateOption.ONLY, relation_oids=(1,))
        counters = Counters(
            lsn=16,
            counters=(
                CounterState(namespace="public", name="s", last_value=-5),
                CounterState(namespace="", name="t", last_value=5),
            ),
        )
        rows = (("1", None), (b"2", "x"), ())
        for message in (
            commit,
            counters,
            truncate,
            InsertBatch(relation_oid=1, new_rows=rows),
            InsertBatch(relation_oid=1, new_rows=rows, xid=7),
        ):
            data = v_new.encode(message)
            in_stream = getattr(message, "xid", None) is not None
            assert v_new.pure_encode(message) == data
            assert v_new.pure_decode(data, in_stream) == v_new.decode(data, in_stream) == message
            for wrong in (data[:-1], data + b"x"):
                errors = []
                for decode in (v_new.decode, v_new.pure_decode):
                    try:
                        decode(wrong, in_stream)
                    except DecodeError as error:
                        errors.append((str(error), vars(error)))
                assert len(errors) == 2 and errors[0] == errors[1]
        for codec, message in (
            (v_old, commit),
            (v_old, truncate),
            (v_new, Commit(commit_lsn=1, end_lsn=2, commit_time=3)),
        ):
            errors = []
            for encode in (codec.encode, codec.pure_encode):
                try:
                    encode(message)
                except EncodeError as error:
                    errors.append((str(error), vars(error)))
            assert len(errors) == 2 and errors[0] == errors[1]
        """,
    )
