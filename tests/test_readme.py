"""What the README shows works as it is written there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.server import Server

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON, CAPTURE, SPARK, TESTING = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_it_begins_with_the_two_commands() -> None:
    first = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)[0]
    assert re.findall(r"^make \w+", first, re.MULTILINE) == ["make demo", "make test"]


def test_the_python_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(PYTHON, {})
    assert capsys.readouterr().out.splitlines()[0] == "t_def {'id': '1', 'a': 'one', 'b': '1'}"


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
    seen: list[bytes] = []
    names: dict[str, Any] = {"my_client": SimpleNamespace(feed=seen.append)}
    exec(TESTING, names)
    names["test_my_client"]()
    assert {data[:1] for data in seen} == {b"I"}


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


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
