"""The demo compares every table; the demo's output is readable in a narrow terminal and in a log file."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest
from msgspec.structs import replace
from rich.console import Console

from examples import demo, shop
from logicalrep.spark import local_session

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

HEADERS = [
    r"type +messages",
    r"table +Snapshot +Insert +Update +Delete +Truncate",
    r"table +rows +equal",
]


def check_output(text: str, width: int) -> None:
    """Check the demo's output: no line exceeds the width, no header is cut, steps begin with a sentence."""
    assert max(map(len, text.splitlines())) <= width
    assert re.fullmatch(r"[\n\x20-\x7e]*", text), "control characters, or other characters than ASCII"
    for header in HEADERS:
        assert re.search(rf"^ +{header}$", text, re.MULTILINE), header
    steps = re.findall(r"^(\d)\. ([A-Z][^\n]*(?:\n {3}\S[^\n]*)*?[.:])$", text, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, 9))


@pytest.mark.nightly  # the CI runs `make demo`
@pytest.mark.usefixtures("stopped_spark")
def test_the_demo_compares_every_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo finds no difference. If the expected rows of each table lack a row, it reports every table."""
    # Spark is not stopped after each run.
    monkeypatch.setattr(demo, "local_session", lambda name: nullcontext(local_session(name)))
    monkeypatch.setattr(demo, "console", Console(highlight=False, width=80))
    assert demo.main() == 0
    check_output(capsys.readouterr().out, 80)
    true_tables = shop.true_tables
    monkeypatch.setattr(demo, "console", Console(highlight=False, width=60))
    monkeypatch.setattr(shop, "WORKLOAD", {})
    monkeypatch.setattr(
        shop, "true_tables", lambda server: [replace(t, rows=t.rows[1:]) for t in true_tables(server)]
    )
    assert demo.main() == 1
    output = capsys.readouterr().out
    check_output(output, 60)
    text = " ".join(output.split())
    assert "These differ from the server's own tables: public.baskets, public." in text


@pytest.mark.parametrize("width", [60, 80])
def test_headers_are_not_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The widest table of the demo fits into 60 columns, with counts of up to five digits."""
    monkeypatch.setattr(demo, "console", Console(highlight=False, width=width))
    counts = ["12,345"] * len(demo.OPERATIONS)
    demo.say_table(("table", *demo.OPERATIONS), [("order_lines", *counts)])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["table", *demo.OPERATIONS]
    assert row.split() == ["order_lines", *counts]
    assert max(len(header), len(row)) <= 60
