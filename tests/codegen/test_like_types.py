"""A built-in type with the text and binary formats of another type is added by YAML only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.codegen.derived import NEW, five as add_five, run_python
from tests.codegen.free import free
from tests.codegen.spec_copy import Run, SpecCopy

BIG = 2**64 - 1


def test_values_convert_in_text_and_binary_format(five: Path) -> None:
    run_python(
        five,
        f"""
        from decimal import Decimal
        import pyarrow as pa
        from logicalrep import catalog
        from logicalrep.values import (
            arrow_type, decode_binary, encode_binary, from_arrow, to_arrow, to_binary, to_python, to_text,
        )

        BIG = {BIG}
        for name, value, type_ in (
            ("ticket", BIG, pa.decimal128(20, 0)), ("row_number", -3, pa.int64()),
        ):
            one = catalog.BY_NAME[name]
            data = value.to_bytes(8, "big", signed=value < 0)
            assert encode_binary(str(value), one.oid) == data
            assert decode_binary(data, one.oid) == str(value)
            assert to_text([data, str(value), None], one.oid) == [str(value), str(value), None]
            assert to_binary([str(value), None], one.oid) == [data, None]
            assert to_python(data, one.oid) == to_python(str(value), one.oid) == value
            assert arrow_type(one.oid) == type_
            for cells in ([data, None], [str(value), None], [data, None, str(value)][::2]):
                array, rescued = to_arrow(cells, one.oid)
                assert (array.type, array[0].as_py(), rescued) == (type_, value, {{}}), (name, cells, array)
            assert from_arrow(array, one.oid).to_pylist()[0] == str(value)
            # The elements of an array have the OID of the new type.
            text = f"{{{{{{value}},NULL}}}}"
            data = encode_binary(text, one.array_oid)
            assert int.from_bytes(data[8:12], "big") == one.oid
            assert decode_binary(data, one.array_oid) == text
            assert to_python(data, one.array_oid) == [value, None]
            assert to_arrow([data], one.array_oid)[0].to_pylist() == [[value, None]]
        try:
            encode_binary("x", catalog.BY_NAME["ticket"].oid)
        except ValueError as error:
            assert "'x' is not what a server writes for the type ticket" in str(error), error
        """,
    )


def test_scenarios_views_and_replicas_have_columns_of_the_type(five: Path) -> None:
    run_python(
        five,
        f"""
        import tempfile
        import pyarrow as pa
        from logicalrep.columns import ColumnDecoder
        from logicalrep.synth import Scenario
        from logicalrep.messages import XLogData

        BIG = {BIG}
        for binary in (False, True):
            db = Scenario(binary=binary)
            columns = dict(id="ticket key", n="row_number", all="ticket[]")
            table = db.table("public.t", **columns, where=("n", "<", "0"))
            with db.transaction() as tx:
                tx.insert(table, id=BIG, n=-3, all=[1, BIG])
                tx.insert(table, id=1, n=3, all=[])
            sent = [one.data for one in db.stream() if isinstance(one, XLogData)]
            (decoded,) = ColumnDecoder(db.options.proto_version).decode(pa.array(sent, pa.binary())).relations
            values, rescued = decoded.new.values()
            assert values.to_pylist() == [{{"id": BIG, "n": -3, "all": [1, BIG]}}], values
        """,
    )


def test_replicas_cast_to_the_type_as_to_the_type_with_the_same_forms(five: Path) -> None:
    run_python(
        five,
        """
        import pyarrow as pa
        from logicalrep import catalog
        from logicalrep.apply.schema.conversion import _text_cast

        for name, text in (("varchar", "true"), ("text_label", "true"), ("json", "t")):
            cast = _text_cast(pa.bool_(), pa.string(), catalog.BY_NAME[name].oid)
            assert cast("t") == text, (name, cast("t"))
        """,
    )


def test_spark_schemas_have_the_type(five: Path) -> None:
    run_python(
        five,
        """
        from logicalrep import catalog

        assert catalog.BY_NAME["ticket"].spark == catalog.BY_NAME["xid8"].spark
        assert catalog.FORMS[8600] is catalog.BY_NAME["xid8"]
        """,
    )
    row = free(f"| `ticket` | 8600 | 8601 | {15 + NEW}+ |")
    assert row in (five / "reference/types.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("like: xid8", "like: xid9", "ticket: like: unknown type `xid9`; the types are bool, bytea, "),
        (
            "like: xid8",
            "like: row_number",
            "ticket: like: unknown type `row_number`; the types are bool, bytea, ",
        ),
        ("like: xid8", "like: int8", "ticket: a type like int8 has `arrow: int64`"),
        ("like: int8", "like: text", "row_number: a type like text has `arrow: string`"),
    ],
)
def test_mistakes_in_like(run: Run, whole_spec: SpecCopy, old: str, new: str, error: str) -> None:
    add_five(whole_spec)
    whole_spec.replace_last(old, new, "types.yaml")
    result = run("--spec", whole_spec.folder, "--out", whole_spec.folder.parent / "out")
    assert re.match(rf".*types\.yaml:\d+: {re.escape(free(error))}", result.err), result.err
