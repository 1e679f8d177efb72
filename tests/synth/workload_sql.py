"""Workloads as SQL statements, which a real server can execute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from logicalrep import messages as m
from logicalrep.catalog import BY_OID
from logicalrep.messages import Relation, TupleData
from logicalrep.stream import StreamDecoder
from logicalrep.synth.workload import Workload
from logicalrep.synth.workload.messages import build_window
from logicalrep.synth.workload.plan import WINDOW_MESSAGES, plan_windows
from logicalrep.synth.workload.tables import make_tables


def stream(workload: Workload, window_messages: int = WINDOW_MESSAGES) -> Iterator[bytes]:
    """Yield the encoded messages of a workload."""
    tables = make_tables(workload)
    for window in plan_windows(workload, window_messages):
        yield from build_window(workload, tables, window).data.to_pylist()


def create_tables(workload: Workload) -> Iterator[str]:
    """Yield a CREATE TABLE statement for each table of a workload."""
    for table in make_tables(workload):
        relation = table.relation
        columns = ", ".join(f"{column.name} {_type(column)}" for column in relation.columns)
        yield f"CREATE TABLE {relation.name} ({columns}, PRIMARY KEY (id))"


def _type(column: m.RelationColumn) -> str:
    name = BY_OID[column.type_oid].name
    if column.type_modifier < 0:
        return name
    return f"{name}({(column.type_modifier - 4) >> 16}, {(column.type_modifier - 4) & 0x7FF})"


def statements(workload: Workload, messages: Iterable[bytes]) -> Iterator[str]:
    """Yield each ordinary transaction (sent as Begin to Commit) of a workload's stream as SQL."""
    decoder = StreamDecoder(workload.options.proto_version, streaming=workload.streaming)
    parts: list[str] = []
    for data in messages:
        match decoder.decode(data):
            case m.Begin():
                parts = ["BEGIN"]
            case m.Insert() as insert:
                relation = decoder.relations[insert.relation_oid]
                parts.append(f"INSERT INTO {relation.name} VALUES ({_list(insert.new)})")
            case m.Update() as update:
                relation = decoder.relations[update.relation_oid]
                parts.append(f"UPDATE {relation.name} SET {_assigned(relation, update.new)}")
            case m.Delete(key=key) as delete:
                assert key is not None
                relation = decoder.relations[delete.relation_oid]
                parts.append(f"DELETE FROM {relation.name} WHERE id = {key[0]!s}")
            case m.Commit():
                yield ";".join([*parts, "COMMIT"])


def _assigned(relation: Relation, cells: TupleData) -> str:
    pairs = zip(relation.columns[1:], cells[1:], strict=True)
    assigned = ", ".join(f"{column.name} = {_list([cell])}" for column, cell in pairs)
    return f"{assigned} WHERE id = {cells[0]!s}"


def _list(cells: Sequence[object]) -> str:
    return ", ".join("NULL" if cell is None else f"'{cell}'" for cell in cells)
