"""The commands and programs that the README and the pages of the documentation show work."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import psycopg
import pytest
from deltalake import DeltaTable

from docs.hooks import OTHER_PAGES, metrics_table, options_table, parameters, public_modules
from logicalrep import LogicalrepError, _protocols, errors, messages, v4
from logicalrep.capturefile import CaptureFile
from logicalrep.cli.record.metrics import RECORDER
from logicalrep.cli.replicate.metrics import REPLICA
from logicalrep.standin import Faults
from logicalrep.standin.faults import Incident
from logicalrep.versions import CODECS
from logicalrep.views import CHANGES, MESSAGES, SCHEMA
from logicalrep.wire import format_lsn
from tests.conftest import Run
from tests.docs.check_site import public_names
from tests.recording import recordings
from tests.server import Server
from tests.versions import CAPTURES, OLDEST, WRITTEN
from tests.views import rows

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *(ROOT / page for page in OTHER_PAGES), *sorted(DOCS.rglob("*.md"))]
MANUAL = [README, ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
COMMANDS = re.findall(r"^## ([\w-]+)$", (DOCS / "reference/command-line.md").read_text(), re.MULTILINE)
RUN_BELOW = {
    "README.md": 4,
    "docs/howto/arrow.md": 2,
    "docs/howto/client.md": 3,
    "docs/howto/consumer.md": 5,
    "docs/howto/iceberg.md": 2,
    "docs/howto/pyspark.md": 5,
    "docs/howto/record.md": 1,
    "docs/howto/replica-tables.md": 1,
    "docs/howto/replicate.md": 2,
    "docs/howto/spark.md": 3,
    "docs/howto/testing.md": 7,
    "docs/howto/vectors.md": 1,
    "docs/reference/errors.md": 1,
    "docs/tutorial.md": 3,
}
"""Number of Python blocks of each page, by path. The tests of this module run all of these blocks, but that
of `docs/howto/vectors.md`, which `tests/vectors` runs."""


def blocks(page: Path | str) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each code block of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for indent, language, block in re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE):
        yield language, re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)


def examples(page: Path | str, language: str = "python") -> list[str]:
    return [block for one, block in blocks(page) if one == language]


def command_lines(page: Path | str) -> list[list[str]]:
    """Return the arguments of each call of `logicalrep` in the shell blocks of a page."""
    lines = "".join(examples(page, "sh")).splitlines()
    commands = [command for line in lines for command in line.partition("#")[0].split("|")]
    words = [shlex.split(command.partition(">")[0]) for command in commands]
    return [one[1:] for one in words if one[:1] == ["logicalrep"]]


DECODE, SPARK, PYSPARK_IN_README, SCENARIO_IN_README = examples(README)
ARROW, VALUES = examples("docs/howto/arrow.md")
CLIENT, CLIENT_USE, CLIENT_VALUES = examples("docs/howto/client.md")
USE_ICEBERG, READ_ICEBERG = examples("docs/howto/iceberg.md")
PYSPARK = examples("docs/howto/pyspark.md")
(RECORD,) = examples("docs/howto/record.md")
READ, READ_TABLE, WRITE = examples("docs/howto/spark.md")
REPLICATE, TABLES = examples("docs/howto/replicate.md")
(VERSIONS,) = examples("docs/howto/replica-tables.md")
(
    *(ENCODE_BY_HAND, STRATEGIES, SCENARIO, TWO_TRANSACTIONS, HYPOTHESIS, WORKLOAD),
    CHECKER,
) = examples("docs/howto/testing.md")
CONSUMER, *CONSUMER_TESTS, PYTEST = examples("docs/howto/consumer.md")
(ERROR,) = examples("docs/reference/errors.md")


def test_every_python_example_is_run() -> None:
    found = {page.relative_to(ROOT).as_posix(): len(examples(page)) for page in MANUAL if examples(page)}
    assert found == RUN_BELOW


def test_the_readme_begins_with_the_two_commands() -> None:
    first = examples(README, "sh")[0]
    assert re.findall(r"^make \w+", first, re.MULTILINE) == ["make demo", "make test"]


def test_decoding_in_the_readme(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(DECODE, {})
    assert capsys.readouterr().out.splitlines()[0] == "t_def {'id': '1', 'a': 'one', 'b': '1'}"


def test_a_scenario_in_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    exec(SCENARIO_IN_README, {})
    *sent, keepalive = capsys.readouterr().out.splitlines()
    assert [re.findall(r"data=b'(.)", line) for line in sent] == [["B"], ["R"], ["I"], ["C"]]
    assert keepalive.startswith("PrimaryKeepalive(")


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_spark_in_the_readme_and_its_page(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}

    def run_example(source: str) -> str:
        # The working directory of Java is that of the first test that needed it.
        source = re.sub('"(recording|lake|made)"', rf'"{tmp_path}/\1"', source)
        exec(source.replace("public.orders", "app.strm") if source != WRITE else source, names)
        return capfd.readouterr().out

    shown = run_example(SPARK)
    assert re.search(r"\| +Insert\| +278\|", shown)
    assert "after rollback to s2" in shown
    assert "undone" not in shown
    rows = DeltaTable(tmp_path / "lake" / "app.strm").to_pyarrow_table()
    assert "after rollback to s2" in rows["v"].to_pylist()
    run_example(READ)
    assert "Insert" in run_example(READ_TABLE)
    run_example(REPLICATE)
    assert "app strm " in run_example(TABLES)
    assert re.search(r"^strm \d+ \d+$", run_example(VERSIONS), re.MULTILINE)
    run_example(WRITE)
    assert len(list((tmp_path / "made").glob("*.parquet"))) >= 1
    monkeypatch.chdir(tmp_path)
    place_names = "messages.parquet|kafka|checkpoint|decoded"
    topic = tmp_path / "kafka"
    for source in (PYSPARK[0], PYSPARK_IN_README, *PYSPARK[1:]):
        source = re.sub(rf'(["`])({place_names})\1', rf"\1{tmp_path}/\2\1", source)
        source = source.replace("tests/captures/", f"{CAPTURES}/")
        if "readStream" in source:
            rows = names["raw"].selectExpr("'wal' AS topic", "0 AS partition", "offset", "value")
            rows.write.parquet(str(topic))
        exec(source, names)
    shown = capfd.readouterr().out
    assert re.search(r"\| +LogicalMessage\| +10\|", shown)
    assert re.search(r"\|0/[0-9A-F]+\|2026-", shown)
    assert re.search(r"\| +1\| +one\|", shown)
    assert names["spark"].read.parquet(str(tmp_path / "decoded")).where("operation = 'Insert'").count() == 274
    assert "[43 00 00" in shown
    schema = names["raw"].select(
        names["from_pgoutput"]("value", proto_version=OLDEST, message="Insert").alias("i")
    )
    # Other specs can have more fields.
    members = _protocols.VERSIONS[WRITTEN].by_name["Insert"].members
    schema.select([f"i.{name}" for name in (*(one.name for one in members), "_rescued_data")]).printSchema()
    assert capfd.readouterr().out.strip() in (DOCS / "howto/pyspark.md").read_text()
    names["spark"].stop()


def test_arrow(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(ARROW, {})
    assert capsys.readouterr().out.splitlines()[0] == "t_def 25 inserted or updated, 3 old"
    exec(VALUES, {})
    assert capsys.readouterr().out.endswith("None, None] {1: 'infinity'}\n")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_recording(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    dsn = new_database(server, "recorded", "CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO t VALUES (1), (2)")
    exec(RECORD, {"dsn": dsn})
    assert capsys.readouterr().out == "0 2\n"
    with server.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot('lake')")  # the tutorial creates it again


def test_the_replication_client(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    dsn = new_database(server, "followed", "CREATE TABLE t (id int PRIMARY KEY)")
    (create_slot,) = examples("docs/howto/client.md", "sql")
    names: dict[str, Any] = {"dsn": dsn}
    exec(CLIENT, names)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(create_slot)
        changes = ("INSERT INTO t VALUES (7)", "UPDATE t SET id = 8", "DELETE FROM t", "TRUNCATE t")
        with connection.transaction():
            for change in changes:
                connection.execute(change)
        for number in (1, 2, 3):
            connection.execute("INSERT INTO t VALUES (%s)", (number,))
        exec(CLIENT_USE, names)
        exec(CLIENT_VALUES, names)
        assert capsys.readouterr().out.splitlines()[1:] == [
            "Insert t {'id': '7'}",
            "Update t {'id': '8'}",
            "Delete t {'id': '8'}",
            "Truncate ['t']",
            "[8]",
        ]

        wait_for_slot(connection, "NOT active")
        names["STATUS_SECONDS"] = 0  # acknowledge at once
        transactions = names["committed"](dsn, "audit", "shop")
        _, first, second, third = (next(transactions) for _ in range(4))
        assert [change_id(one) for one in (first, second, third)] == ["1", "2", "3"]
        acknowledged = format_lsn(second.end_lsn)
        wait_for_slot(connection, f"confirmed_flush_lsn >= '{acknowledged}'")
        transactions.close()
        wait_for_slot(connection, "NOT active")
        transactions = names["committed"](dsn, "audit", "shop")
        assert change_id(next(transactions)) == "3", "only the last one was not acknowledged"
        transactions.close()


def test_iceberg(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recording").mkdir()
    name = "pg18_p4_par_2pc"
    recordings.write(Path("recording"), recordings.source(name), recordings.sent(name))
    exec(USE_ICEBERG, {})
    exec(READ_ICEBERG, {})
    shown = capsys.readouterr().out.splitlines()
    assert "('app', 't_def') 18" in shown


def wait_for_slot(connection: psycopg.Connection, condition: str) -> None:
    """Wait until the slot `audit` meets a condition, an SQL expression on pg_replication_slots."""
    query = f"SELECT {condition} FROM pg_replication_slots WHERE slot_name = 'audit'"
    deadline = time.monotonic() + 120
    while connection.execute(query).fetchone() != (True,):
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


def change_id(transaction: Any) -> Any:
    (change,) = transaction.changes
    return change.message.new[0]


def new_database(server: Server, name: str, table: str) -> str:
    """Create a database with a table and the publication that the pages use; return the database's DSN."""
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
    dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(table)
        connection.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    return dsn


def test_the_tutorial(server: Server, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with server.connect() as connection:
        connection.execute("CREATE DATABASE tutorial")
    for name, value in psycopg.conninfo.conninfo_to_dict(server.dsn, dbname="tutorial").items():
        monkeypatch.setenv({"dbname": "PGDATABASE"}.get(name, f"PG{name.upper()}"), str(value))
    names: dict[str, Any] = {}
    printed = ""
    for language, block in blocks("docs/tutorial.md"):
        if language == "sql":
            with psycopg.connect("", autocommit=True) as connection:
                connection.execute(block)
        elif language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(re.sub('"lake/', f'"{tmp_path}/lake/', block), names)
            printed = out.getvalue()
        elif language == "text":
            assert printed == block
        else:
            for line in block.splitlines():
                if line.startswith("logicalrep ") and "sync" not in line:  # which runs until Ctrl-C
                    words = shlex.split(line)[1:]
                    words = [
                        str(tmp_path / one)
                        if one in ("recording", "lake") and words[0] == "replicate"
                        else one
                        for one in words
                    ]
                    done = run(*words)
                    assert done.code == 0, done.err


def test_messages_encoded_by_hand(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(ENCODE_BY_HAND, names)
    with CaptureFile("mine.jsonl") as capture:
        assert [line.message for line in capture.messages()] == names["stream"]
    for arguments in (["check", "mine.jsonl"], ["inspect", "mine.jsonl"]):
        assert run(*arguments).code == 0


def test_the_generated_strategies() -> None:
    read: list[messages.Message] = []

    def decode(data: bytes, **context: Any) -> messages.Message:
        read.append(v4.decode(data, **context))
        return read[-1]

    names: dict[str, Any] = {"my_decoder": decode}
    exec(STRATEGIES, names)
    names["test_my_decoder_reads_every_message"]()
    assert len({type(message) for message in read}) > 5


def test_the_scenarios_of_the_testing_page(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(SCENARIO, names)
    assert capsys.readouterr().out.splitlines()[-1].startswith("PrimaryKeepalive(")
    exec(TWO_TRANSACTIONS, names)
    assert [type(message).__name__ for message in names["messages"]] == [
        *("Begin", "Relation", "Insert", "Commit"),
        *("Begin", "Insert", "Commit"),
        *("Begin", "Origin", "Update", "Commit"),
    ]
    assert [row["id"] for row in names["expected"]["public.orders"]] == ["3", "2"]


def test_the_strategies_of_the_testing_page() -> None:
    fed: list[bytes] = []
    client = SimpleNamespace(feed=fed.append, feed_anything=fed.append)
    names: dict[str, Any] = {"my_client": client}
    exec(HYPOTHESIS, names)
    names["test_client_reads_legal_streams"]()
    assert {b"S", b"E", b"c", b"R", b"I"} <= {data[:1] for data in fed}
    names["test_client_survives_broken_streams"]()


def test_the_workload_of_the_testing_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(WORKLOAD, names)
    assert {table.relation.namespace for table in names["tables"].values()} == {"varied", "public"}


def test_the_pytest_fixture_of_the_testing_page(logicalrep_server: Any) -> None:
    client: dict[str, Any] = {}
    exec(CLIENT, client)
    connections = 0

    def read(dsn: str, slot: str, publication: str, until: int) -> list[int]:
        nonlocal connections
        ends: list[int] = []
        while until not in ends:
            connections += 1
            with contextlib.suppress(RuntimeError, psycopg.OperationalError):
                for transaction in client["committed"](dsn, slot, publication):
                    if transaction.end_lsn not in ends:
                        ends.append(transaction.end_lsn)
                    if transaction.end_lsn == until:
                        break
        return ends

    names: dict[str, Any] = {"my_client": read}
    exec(PYTEST, names)
    names["test_my_client_loses_no_commit"](logicalrep_server)
    assert connections > 10


def test_the_consumer_page(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "consumer.py").write_text(CONSUMER)
    (tmp_path / "test_consumer.py").write_text("\n\n".join(CONSUMER_TESTS))
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(pytest_command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "24 passed" in ended.stdout, ended.stdout


def test_the_checker_of_the_testing_page(capsys: pytest.CaptureFixture[str]) -> None:
    exec(CHECKER, {"my_encoder": lambda: [v4.encode(messages.StreamStop())]})
    assert capsys.readouterr().out.startswith("illegal at message 0, byte 0, because ")


def test_the_faults_of_the_stand_in_server() -> None:
    page = (DOCS / "howto/consumer.md").read_text()
    shown = re.findall(r"^\| `([a-z-]+)(?:=\w+)?` \|", page, re.MULTILINE)
    repeated = [name for name in Faults.__struct_encode_fields__ if not name.startswith("at-")]
    assert shown == [*repeated, *get_args(Incident)]


@pytest.mark.parametrize(
    "arguments",
    [one for one in command_lines(README) if one[0] == "inspect"]
    + [one for one in command_lines("docs/howto/testing.md") if one[:2] == ["check", "--rules"]],
    ids=" ".join,
)
def test_commands_that_need_nothing_else(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(*arguments).code == 0


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_have_the_options_shown(page: Path) -> None:
    for command, *arguments in command_lines(page):
        if command == "--version":
            continue
        if [command, *arguments[:1]] == ["vectors", "run"]:
            command, arguments = "vectors run", arguments[: arguments.index("--")]
        known = {name for one in parameters(command) for name in one.opts}
        shown = {one for one in arguments if one.startswith("-") and one != "-"}
        assert shown <= known, command


def test_the_command_line_page_has_every_command(run: Run) -> None:
    page = (DOCS / "reference/command-line.md").read_text()
    printed = run("--help").out.partition("─ Look ─")[2]
    assert re.findall(r"^│ ([\w-]+) ", printed, re.MULTILINE) == COMMANDS
    assert re.findall(r"<!-- options of ([\w-]+) -->", page) == COMMANDS
    assert re.findall(r"^\| \[`([\w-]+)`\]\(#\1\)", page, re.MULTILINE) == COMMANDS


@pytest.mark.parametrize("command", [*COMMANDS, "vectors run"])
def test_the_table_of_options_has_what_help_prints(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    printed = run(*command.split(), "--help").out
    table = options_table(command)
    options = re.compile("--[a-z][a-z-]*")
    assert set(options.findall(printed)) - {"--help"} == set(options.findall(table))
    for meaning in re.findall(r"\| ([^|]+) \|$", table, re.MULTILINE)[1:]:
        assert meaning.replace("&#124;", "|") in printed


def test_the_pages_name_metrics_that_are_served() -> None:
    """`tests/cli/test_metrics.py` scrapes these metrics."""
    defined = {one.name for one in RECORDER + REPLICA}
    shown = re.compile(r"\blogicalrep_(?:recorder|replica|slot)_\w+")
    for page in MANUAL:
        assert set(shown.findall(page.read_text())) <= defined, page
    text = (DOCS / "howto/watch.md").read_text()
    programs = re.findall(r"<!-- metrics of (\w+) -->", text)
    tables = "".join(metrics_table(program) for program in programs)
    assert set(shown.findall(tables)) == defined


def test_the_error_page(capsys: pytest.CaptureFixture[str]) -> None:
    tree, output = examples("docs/reference/errors.md", "text")
    assert re.findall(r"\w*(?:Error|Lost|InUse)\b", tree) == tree_of(LogicalrepError)
    exec(ERROR, {})
    assert capsys.readouterr().out == output


def tree_of(error: type[Exception]) -> list[str]:
    """Return the names of an error class and all its subclasses in `logicalrep.errors`, depth first."""
    below = [one for one in error.__subclasses__() if one.__module__ == errors.__name__]
    return [error.__name__, *(name for one in below for name in tree_of(one))]


def test_the_data_source_page_names_every_column() -> None:
    page = (DOCS / "reference/data-source.md").read_text()
    parts = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))

    def columns(part: str) -> list[str]:
        rows = re.findall(r"^\| (`.*?`) \|", parts[part], re.MULTILINE)
        return re.findall(r"`(\w+)`", " ".join(rows))

    assert columns("View `changes`") == CHANGES.names
    assert columns("View `schema`") == SCHEMA.names
    assert set(columns("View `messages`")) <= set(MESSAGES.names)


def test_the_type_page_shows_the_spec() -> None:
    (entry,) = examples("docs/howto/type.md", "yaml")
    spec = re.sub("^  ", "", (ROOT / "spec/types.yaml").read_text(), flags=re.MULTILINE)
    assert entry in spec


def test_one_row_of_each_view_is_that_of_a_recording(tmp_path: Path) -> None:
    recordings.write(tmp_path, recordings.source("pg18_p1"), recordings.sent("pg18_p1"), 10_000)
    found = {
        "messages": rows.messages(tmp_path),
        "changes": rows.changes(tmp_path),
        "table": rows.table(tmp_path, "t_def").to_pylist(),
        "schema": rows.schema_rows(tmp_path),
    }
    (block,) = examples("docs/how-it-works.md", "json")
    for text in block.split("\n\n"):
        shown = json.loads(text)
        view, position = shown.pop("view"), shown["position"]
        (row,) = [row for row in found.pop(view) if row["position"] == position]
        if view == "changes":
            row["after"] = dict(row["after"])
        assert {name: without_nulls(value) for name, value in row.items() if name in shown} == shown
        left_out = {name for name, value in row.items() if name not in shown and value is not None}
        assert left_out <= {"commit_time", "received_at", "wal_start", "lsn"}, view
    assert found == {}


def without_nulls(value: object) -> object:
    """Return a value without the NULL fields of its structs."""
    if isinstance(value, list):
        return [*map(without_nulls, value)]
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return value


def test_the_errors_of_the_page_on_troubleshooting_exist() -> None:
    """The pieces between `…` are in the code, as they are in the error."""
    code = "".join(path.read_text() for path in sorted((ROOT / "runtime").rglob("*.py")))
    joined = re.sub(r"['\"]\s*\n\s*f?['\"]", "", code).replace('\\"', '"')
    joined = re.sub(r"\{[^{}]*\}", "…", joined)
    table = re.findall(r"^\| (`.*?`) \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    texts = [text for cell in table for text in re.findall("`([^`]+)`", cell)]
    assert len(texts) >= 30
    servers = {
        "no pg_hba.conf entry for host …",
        'syntax error at or near "IDENTIFY_SYSTEM"',
        'character with byte sequence … has no equivalent in encoding "UTF8"',
    }
    missing = [
        text
        for text in texts
        if text not in servers and any(one.strip(" .:;") not in joined for one in text.split("…"))
    ]
    assert missing == []


def test_the_site_has_every_public_module() -> None:
    assert {
        "logicalrep",
        *(f"logicalrep.v{version}" for version in CODECS),
        "logicalrep.stream.check",
    } <= set(public_modules())


def test_users_see_fewer_than_200_names() -> None:
    names = [
        f"{module}.{name}"
        for module in public_modules()
        if module != "logicalrep"
        for name in public_names(module)
    ]
    assert len(names) < 200, names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        if ":" not in target:
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or linked.suffix != ".md" or anchor in anchors(linked), (target, anchor)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    text = re.sub("^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall("^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_name_versions_that_the_spec_has(page: Path) -> None:
    if page == DOCS / "howto/protocol-version.md":
        return  # its example adds a version
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        for version in re.findall(
            r"""(?:proto_version|--proto)["']?[ =:]+["']?(\d+)|StreamDecoder\((\d+)""", line
        ):
            assert int("".join(version)) in CODECS, f"{page}:{number}: protocol version is not in spec/"


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(page: Path) -> None:
    folders = "spec|codegen|generated|runtime|tests|deploy|docs|benchmarks|examples"
    for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists() or "v5" in path, path
