"""Spans of OpenTelemetry, recorded by a tracer of the test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from logicalrep import _trace
from logicalrep.replica import replica_tables, replicate
from tests.recorder.lab import Lab


class Tracer:
    """Has the one method of a tracer that the library calls; its spans have the one method of spans."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, dict[str, Any]]] = []
        self.states: list[tuple[trace.StatusCode, str]] = []

    @contextmanager
    def start_as_current_span(self, name: str, attributes: dict[str, Any]) -> Iterator[Tracer]:
        yield self
        self.spans.append((name, attributes))

    def set_status(self, status: trace.StatusCode, description: str) -> None:
        self.states.append((status, description))


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracer]:
    tracer = Tracer()
    monkeypatch.setattr(trace, "get_tracer", lambda name: tracer)
    _trace._find_tracer.cache_clear()
    yield tracer
    _trace._find_tracer.cache_clear()


@pytest.fixture
def lake(lab: Lab, tmp_path: Path, tracer: Tracer) -> Path:
    """A replica of a table with one row."""
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    lab.record()
    lab.run("INSERT INTO t VALUES (1)")
    lab.record()
    replicate(lab.folder, tmp_path / "lake")
    return tmp_path / "lake"


@pytest.mark.usefixtures("lake")
def test_segments_and_micro_batches_are_spans(lab: Lab, tracer: Tracer) -> None:
    segments = lab.segments()
    last = segments[-1].number
    assert tracer.spans == [
        *(
            (
                "logicalrep store segment",
                {
                    "logicalrep.segment": one.number,
                    "logicalrep.messages": one.messages,
                    "logicalrep.kind": one.kind,
                },
            )
            for one in segments
        ),
        (
            "logicalrep apply micro-batch",
            {"logicalrep.first_segment": 1, "logicalrep.last_segment": last},
        ),
    ]


def test_a_failed_table_is_the_status_of_the_span(lab: Lab, lake: Path, tracer: Tracer) -> None:
    assert tracer.states == []
    (table,) = replica_tables(lake).values()
    for file in Path(table.place).glob("*.parquet"):
        file.unlink()
    lab.run("UPDATE t SET id = 2")
    lab.record()
    replicate(lab.folder, lake)
    ((status, text),) = tracer.states
    assert status is trace.StatusCode.ERROR
    assert text.startswith(f"public.t: {table.place}/part-")
    replicate(lab.folder, lake)
    assert tracer.states == [(status, text)] * 2


def test_nothing_happens_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    _trace._find_tracer.cache_clear()
    try:
        with _trace.span("name", segment=1):
            assert _trace._find_tracer() is None
    finally:
        _trace._find_tracer.cache_clear()


def test_the_tracer_has_the_method_of_opentelemetry() -> None:
    with trace.get_tracer("test").start_as_current_span("name", attributes={"key": 1}) as span:
        assert not span.is_recording(), "without an SDK"
        _trace.mark_failed(span, "text")
    with _trace.span("name", segment=1):
        pass
