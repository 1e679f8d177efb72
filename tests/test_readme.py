"""What the README and the pages behind it show works as it is written there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from pgoutput import messages, v4
from pgoutput.messages import PrimaryKeepalive
from tests.server import Server

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def examples(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


PYTHON, SPARK, TESTING = examples(README)
(ARROW,) = examples(ROOT / "docs/arrow.md")
(CAPTURE,) = examples(ROOT / "docs/recording.md")
SCENARIO, HYPOTHESIS, CHECKER = examples(ROOT / "docs/testing.md")


def test_it_begins_with_the_two_commands() -> None:
    first = examples(README, "sh")[0]
    assert re.findall(r"^make \w+", first, re.MULTILINE) == ["make demo", "make test"]


def test_the_python_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(PYTHON, {})
    assert capsys.readouterr().out.splitlines()[0] == "t_def {'id': '1', 'a': 'one', 'b': '1'}"


def test_the_arrow_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(ARROW, {})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "t_def 25 inserted or updated, 3 old"


def test_the_capture_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with Server() as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            connection.execute("INSERT INTO t VALUES (1), (2)")
            connection.execute("CREATE PUBLICATION shop FOR ALL TABLES")
        exec(CAPTURE, {"dsn": server.dsn})
    assert capsys.readouterr().out == "0 2\n"


def test_the_testing_example() -> None:
    seen: list[Any] = []
    exec(TESTING, {"my_client": SimpleNamespace(feed=seen.append)})
    assert [one.data[:1] for one in seen[:-1]] == [b"B", b"R", b"I", b"C"]
    assert isinstance(seen[-1], PrimaryKeepalive)


def test_the_scenario_example(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(SCENARIO, names)
    assert "PrimaryKeepalive" in capsys.readouterr().out
    assert [type(message).__name__ for message in names["messages"]] == [
        *("Begin", "Relation", "Insert", "Commit"),
        *("Begin", "Insert", "Commit"),
        *("Begin", "Origin", "Update", "Commit"),
    ]
    assert [row["id"] for row in names["truth"][-1].tables["public.orders"]] == ["3", "2"]


def test_the_hypothesis_example() -> None:
    seen: list[bytes] = []
    client = SimpleNamespace(feed=seen.append, feed_anything=seen.append)
    names: dict[str, Any] = {"my_client": client}
    exec(HYPOTHESIS, names)
    names["test_it_reads_what_servers_send"]()
    assert {b"S", b"E", b"c", b"R", b"I"} <= {data[:1] for data in seen}
    names["test_it_survives_what_they_do_not_send"]()


def test_the_checker_example(capsys: pytest.CaptureFixture[str]) -> None:
    exec(CHECKER, {"my_encoder": lambda: [v4.encode(messages.StreamStop())]})
    assert capsys.readouterr().out.startswith("illegal at message 0, byte 0, because ")


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_spark_example(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    # Java's working directory is that of the first test that needed it.
    exec(re.sub('"(recording|lake)"', rf'"{tmp_path}/\1"', SPARK), names)
    names["spark"].stop()
    said = capfd.readouterr().out
    assert re.search(r"\| +Insert\| +278\|", said)
    assert "after rollback to s2" in said
    assert "undone" not in said
    rows = DeltaTable(tmp_path / "lake" / "app.strm").to_pyarrow_table()
    assert "after rollback to s2" in rows["v"].to_pylist()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
