"""The example pipeline for Spark runs and resumes; AUTO CDC fails if the target does not support MERGE."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import Output
from pyspark.sql import DataFrame, SparkSession

from examples.pipeline import run
from logicalrep.recording import Recording, SegmentReader
from logicalrep.views import ChangesView, plan_changes, read
from tests.effort import mostly_nightly
from tests.recording import recordings
from tests.truth import true_tables

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def record(folder: Path, name: str) -> list[Path]:
    folder.mkdir()
    return recordings.write(folder, recordings.source(name), recordings.sent(name), 600)


def changes(recording: Path) -> Counter[tuple[str, str]]:
    """Read a recording without Spark; return the number of changes by table and operation."""
    counted: Counter[tuple[str, str]] = Counter()
    opened = Recording(recording)
    for task in plan_changes(opened, opened.numbers):
        with SegmentReader(task.place) as segment:
            for batch in read(segment, ChangesView(segment, task, lambda shape: True)):
                for row in batch.select(["relation", "operation"]).to_pylist():
                    relation = row["relation"]
                    counted[f"{relation['namespace']}.{relation['name']}", row["operation"]] += 1
    return counted


def table(out: Path, name: str) -> list[dict[str, Any]]:
    # Read file by file, because the folder also contains the metadata of Spark's sink.
    files = sorted((out / "tables" / name).glob("*.parquet"))
    return [row for file in files for row in parquet.ParquetFile(file).read().to_pylist()]


@pytest.mark.nightly
def test_each_run_reads_only_new_segments(tmp_path: Path) -> None:
    recording, out = tmp_path / "recording", tmp_path / "out"
    *_, last = record(recording, "pg18_p1")
    later = last.rename(tmp_path / last.name)
    for _ in range(2):
        assert run.main([str(recording), str(out)]) == 0
        expected = changes(recording)
        made = Counter(
            (f"{row['relation']['namespace']}.{row['relation']['name']}", row["operation"])
            for row in table(out, "changes")
        )
        assert made == expected
        rows = table(out, "changes_by_relation")
        assert {(row["relation"], row["operation"]): row["changes"] for row in rows} == expected
        if later.exists():
            later.rename(last)
    assert {path.name for path in tmp_path.iterdir()} == {"recording", "out"}
    assert {path.name for path in out.iterdir()} == {"catalog", "conf", "pipeline", "tables"}


@pytest.mark.nightly
def test_auto_cdc_needs_a_target_that_supports_merge(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """If no target supports MERGE, Spark accepts the pipeline's definitions, but the run fails."""
    record(tmp_path / "recording", "pg18_p1")
    assert run.main(["--merge", "app.t_def.id", str(tmp_path / "recording"), str(tmp_path / "out")]) == 1
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in "".join(capfd.readouterr())


class DefinitionRegistry(GraphElementRegistry):
    """A registry for Spark Declarative Pipelines that collects the definitions of a pipeline."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.flows: list[Flow] = []
        self.cdc: list[AutoCdcFlow] = []

    def register_output(self, output: Output) -> None:
        self.outputs.append(output)

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        self.cdc.append(flow)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise AssertionError(sql_text)


def define(recording: Path, name: str, key: str) -> DefinitionRegistry:
    """Load the definitions of the AUTO CDC pipeline, as `spark-pipelines` does."""
    for setting, value in {"path": str(recording), "table": name, "key": key}.items():
        SparkSession.active().conf.set(f"logicalrep.{setting}", value)
    file = run.HERE / "merge" / "transformations" / "table.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    registered = DefinitionRegistry()
    with graph_element_registration_context(registered):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return registered


@pytest.mark.parametrize(
    "name",
    mostly_nightly(["app.bulk", "app.t_def", "app.t_toastf", "app.t_tkey"], kept=["app.t_tkey"]),
)
@pytest.mark.usefixtures("session")
def test_merged_row_events_equal_the_servers_table(tmp_path: Path, name: str) -> None:
    """This test merges events like AUTO CDC: for each key, the event with the greatest `sequence` wins."""
    key = "k" if name == "app.t_tkey" else "id"
    record(tmp_path / "recording", "pg18_p1")
    registered = define(tmp_path / "recording", name, key)
    (flow,) = registered.cdc
    assert (flow.target, flow.source) == (name.partition(".")[2], registered.flows[0].name)
    assert [output.name for output in registered.outputs] == ["row_events", flow.target]

    events: list[dict[str, Any]] = []

    def take(batch: DataFrame, number: int) -> None:
        events.extend(batch.toArrow().to_pylist())

    writer = registered.flows[0].func().writeStream.foreachBatch(take).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    rows: dict[Any, dict[str, Any]] = {}
    for event in sorted(events, key=lambda event: tuple(event["sequence"].values())):
        if event["operation"] == "Delete":
            rows.pop(event[key], None)
        else:
            rows[event[key]] = event
    (true,) = (one for one in true_tables("pg18") if one.name == name)
    texts = [
        {name: None if cell is None else str(cell) for name, cell in row.items()} for row in rows.values()
    ]
    got = sorted((tuple(row[column] for column in true.columns) for row in texts), key=repr)
    assert got == true.select(true.columns)
