"""Replicas have the right rows after DDL that gives existing rows other values without sending them."""

from __future__ import annotations

import os
from itertools import cycle
from pathlib import Path

import pytest

from logicalrep.recorder.catalogs import CatalogWatch
from logicalrep.recorder.catalogs.ddl_events import DDL_EVENTS_SINCE
from logicalrep.targets import registry
from tests.recorder.lab import Lab
from tests.silent.cases import CASES, ONE_OF_EACH, READ_LATE
from tests.silent.field import Field
from tests.targets.formats import FORMATS

WIDE = [] if "LOGICALREP_TEST_VERSION" in os.environ else [pytest.mark.nightly]
"""Marks of tests that `make matrix` and `make nightly` run, but not `make test`."""


@pytest.fixture(autouse=True)
def _read_catalogs_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logicalrep.recorder.catalogs.watch._PAUSE_FACTOR", 1)


def check(field: Field) -> None:
    """Run the cases of a field, and check that none is wrong."""
    wrong = field.run()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "target", ["vectors", *(pytest.param(one, marks=WIDE) for one in ("delta", "iceberg", "plain"))]
)
def test_one_case_of_each_fault(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(registry, "format_of", lambda _: FORMATS[target].format)
    check(Field(lab, tmp_path / "target", ONE_OF_EACH))


def test_catalogs_that_cannot_be_read_in_time(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.require(13, "publish_via_partition_root")
    read_now, answers = CatalogWatch.read_now, cycle((False, True))
    monkeypatch.setattr(
        CatalogWatch, "read_now", lambda self, oids=(): read_now(self, oids) if next(answers) else None
    )
    check(Field(lab, tmp_path / "target", READ_LATE))


@pytest.mark.parametrize("history", [pytest.param(one, marks=WIDE) for one in (False, True)])
@pytest.mark.parametrize("ddl_events", [pytest.param(one, marks=WIDE) for one in (False, True)])
def test_one_case_of_each_fault_with_event_trigger_and_history(
    lab: Lab, tmp_path: Path, ddl_events: bool, history: bool
) -> None:
    if ddl_events:
        lab.require(DDL_EVENTS_SINCE, "logical messages")
    check(Field(lab, tmp_path / "target", ONE_OF_EACH, ddl_events=ddl_events, history=history))


@pytest.mark.parametrize("target", [pytest.param("vectors", marks=WIDE)])
def test_all_cases(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(registry, "format_of", lambda _: FORMATS[target].format)
    check(Field(lab, tmp_path / "target", CASES))
