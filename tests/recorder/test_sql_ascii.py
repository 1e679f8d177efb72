"""SQL_ASCII databases: the recorder keeps text that is not valid UTF-8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from logicalrep.recorder import Connected, RecorderOptions, Stored
from tests.recorder.conftest import Command
from tests.recorder.lab import Lab
from tests.server import Server

NAME = "t\udcff\udcc3"
"""A name with the bytes 0xff and 0xc3, which are not valid UTF-8."""


@pytest.fixture
def ascii_lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(server, tmp_path, "ENCODING 'SQL_ASCII' TEMPLATE template0") as lab:
        lab.run(
            r"""DO $$ BEGIN
                EXECUTE E'CREATE TYPE "e\xff" AS ENUM (E''\\xfe'')';
                EXECUTE E'CREATE TABLE "t\xff\xc3" (id int PRIMARY KEY, "c\xff" text, e "e\xff")';
            END $$""",
            "CREATE PUBLICATION p FOR ALL TABLES",
        )
        yield lab


def insert(lab: Lab, number: int) -> None:
    lab.run(
        rf"""DO $$ BEGIN
            EXECUTE E'INSERT INTO "t\xff\xc3" VALUES ({number}, E''{number} \\xff\\xc3\\x28'', E''\\xfe'')';
        END $$"""
    )


def rows(lab: Lab) -> list[Mapping[str, object]]:
    return [row for table in lab.replay().values() if table.relation.name == NAME for row in table]


def expected(number: int) -> dict[str, object]:
    return {"id": str(number), "c\udcff": f"{number} \udcff\udcc3(", "e": "\udcfe"}


@pytest.mark.parametrize("binary", [False, True])
def test_bytes_pass_through(ascii_lab: Lab, binary: bool) -> None:
    lab = ascii_lab
    options = RecorderOptions(binary=binary and lab.version >= 14)
    insert(lab, 1)
    with lab.recording(options=options, snapshot=True) as recording:
        recording.wait(Connected)
        insert(lab, 2)
        recording.wait(Stored)
    insert(lab, 3)
    lab.record(options=options, snapshot=True)
    if not options.binary:
        assert sorted(rows(lab), key=str) == [expected(1), expected(2), expected(3)]
    else:
        assert [row["c\udcff"] for row in rows(lab)] == [b"%d \xff\xc3(" % n for n in (1, 2, 3)]


def test_events_are_json(ascii_lab: Lab, record_cli: Command) -> None:
    lab = ascii_lab
    insert(lab, 1)
    place = {"dsn": lab.dsn, "slot": lab.slot, "recording": lab.folder}
    code, out, err = record_cli("--until=now", "--snapshot", "--log=json", "--detail", **place)
    assert (code, err) == (0, "")
    tables = {event.get("table") for event in map(msgspec.json.decode, out.splitlines())}
    assert tables == {None, r"public.t\xff\xc3"}


def test_a_publication_whose_name_is_not_utf_8(lab: Lab, record_cli: Command) -> None:
    code, _, err = record_cli("--create-slot", publication="p\udcff")
    assert (code, err) == (
        2,
        "logicalrep: the name of the publication p\\xff is not valid UTF-8: rename it\n",
    )


def test_a_database_whose_name_is_not_utf_8(
    ascii_lab: Lab, record_cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only PGDATABASE or a service file can name such a database: psycopg takes a DSN as text."""
    monkeypatch.setenv("PGDATABASE", "d\udcff")
    with ascii_lab.connect() as connection:
        connection.execute(b"CREATE DATABASE \"d\xff\" ENCODING 'SQL_ASCII' TEMPLATE template0")
        code, _, err = record_cli("--create-slot", dsn=f"host={ascii_lab.server.folder} user=postgres")
        connection.execute(b'DROP DATABASE "d\xff"')
    assert code == 3
    assert err == (
        "logicalrep: the name of the database d\\xff is not valid UTF-8, and a recording keeps it as text: "
        "rename the database\n"
    )
