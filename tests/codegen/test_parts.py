"""Parts of the generator: version gates, names, layouts of messages, docstrings and literals."""

from __future__ import annotations

import pytest

from codegen import filters
from codegen.layout import Layout, One, Run, When, layout
from codegen.load import load
from codegen.model import Gate
from codegen.resolve import resolve, snake
from tests.codegen.spec_copy import ROOT

SPEC = load(ROOT / "spec")


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [("1+", [1, 2, 99], [0]), ("2+", [2, 3, 99], [1]), ("2-3", [2, 3], [1, 4]), ("2", [2], [1, 3])],
)
def test_a_gate_contains_its_versions(text: str, inside: list[int], outside: list[int]) -> None:
    gate = Gate.parse(text)
    assert all(version in gate for version in inside)
    assert not any(version in gate for version in outside)
    assert str(gate) == text


@pytest.mark.parametrize(
    "text", ["", "0+", "01+", "+", "2 +", "2-", "-2", "2..3", "3-2", "2+\n", "²+", "2-3+"]
)
def test_an_invalid_gate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="gate"):
        Gate.parse(text)


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ("1+", "1+", True), ("2+", "1+", True), ("1+", "2+", False), ("2-3", "1+", True),
        ("2-3", "2-4", True), ("2-5", "2-4", False), ("2+", "2-4", False), ("3", "2-4", True),
        ("1", "2-4", False),
    ],
)  # fmt: skip
def test_a_gate_is_within_another(inner: str, outer: str, expected: bool) -> None:
    assert Gate.parse(inner).within(Gate.parse(outer)) is expected


def test_a_range_of_one_version_is_written_as_that_version() -> None:
    assert str(Gate.parse("3-3")) == "3"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Begin", "begin"),
        ("StreamStart", "stream_start"),
        ("XLogData", "xlog_data"),
        ("HotStandbyFeedback", "hot_standby_feedback"),
        ("relation_oid", "relation_oid"),
        ("Int8Range", "int8_range"),
    ],
)
def test_names_become_snake_case(name: str, expected: str) -> None:
    assert snake(name) == expected


def _layout(name: str, version: int) -> Layout:
    view = resolve(SPEC, SPEC.protocols["pgoutput"], version)
    [message] = [message for message in view.messages if message.name == name]
    return layout(message.name, message.fields)


def _steps(steps: tuple[Run | One | When, ...]) -> list[object]:
    """Return layout steps as plain values: (fields, struct format), field name, or (condition, steps)."""
    described: list[object] = []
    for step in steps:
        match step:
            case Run(fields=fields):
                described.append((" ".join(field.name for field in fields), step.format))
            case One(field=field):
                described.append(field.name)
            case When(condition=condition, steps=inner):
                described.append((condition, _steps(inner)))
    return described


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("Begin", 1, [("final_lsn commit_time xid", ">QqI")]),
        ("Commit", 1, [("flags commit_lsn end_lsn commit_time", ">BQQq")]),
        ("StreamStop", 2, []),
        ("Origin", 1, [("origin_lsn", ">Q"), "name"]),
        ("Insert", 1, [("relation_oid", ">I"), "new"]),
        ("Insert", 2, [("in_stream", [("xid", ">I")]), ("relation_oid", ">I"), "new"]),
        ("Update", 1, [("relation_oid", ">I"), "key|old", "new"]),
        ("Truncate", 1, [("relation_oids.count options", ">IB"), "relation_oids"]),
        ("LogicalMessage", 1, [("flags lsn", ">BQ"), "prefix", ("content.length", ">I"), "content"]),
        ("StreamAbort", 3, [("xid subxid", ">II")]),
        ("StreamAbort", 4, [("xid subxid", ">II"),
            ("streaming = parallel", [("abort_lsn abort_time", ">Qq")])]),
        ("Relation", 1, [("oid", ">I"), "namespace", "name",
            ("replica_identity columns.count", ">BH"), "columns"]),
    ],
)  # fmt: skip
def test_adjacent_fixed_width_fields_are_read_in_one_run(
    name: str, version: int, expected: list[object]
) -> None:
    assert _steps(_layout(name, version).steps) == expected


def test_a_message_of_fixed_width_fields_is_one_run() -> None:
    begin = _layout("Begin", 1)
    assert begin.fixed == begin.steps[0]
    assert begin.fixed.name == "_RUN_LSN_TIMESTAMP_XID"
    assert begin.fixed.size == 20
    assert _layout("Insert", 2).fixed is None
    assert [run.format for run in _layout("Insert", 2).runs] == [">I", ">I"]


def test_each_version_has_its_messages() -> None:
    names = {
        version: {message.name for message in resolve(SPEC, SPEC.protocols["pgoutput"], version).messages}
        for version in SPEC.versions
    }
    added = {
        2: {"StreamStart", "StreamStop", "StreamCommit", "StreamAbort"},
        3: {"BeginPrepare", "Prepare", "CommitPrepared", "RollbackPrepared", "StreamPrepare"},
        4: set(),
    }
    for version in added.keys() & {number + 1 for number in names}:
        assert names[version] - names[version - 1] == added[version]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Short.", "Short."),
        ("One\n  line.", "One line."),
        ('Ends in a "quote"', 'Ends in a "quote"\n    '),
        (r"A \x.", r"A \\x."),
        (
            "First. " + "More " * 25,
            "First.\n\n    " + " ".join(["More"] * 21) + "\n    More More More More\n    ",
        ),
    ],
)
def test_docstrings_are_escaped_and_wrapped(text: str, expected: str) -> None:
    actual = filters.doc(text, 4)
    assert actual == expected
    assert max(map(len, f'    """{actual}"""'.splitlines())) <= filters.WIDTH
    compile(f'"""{actual}"""', "docstring", "eval")


@pytest.mark.parametrize("value", ["", "short", "long " * 100, "\\x \"'" * 40, 7, None, ("a", 1)])
def test_literals_evaluate_to_their_value(value: object) -> None:
    assert eval(filters.literal(value)) == value
