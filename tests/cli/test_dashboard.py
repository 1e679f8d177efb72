"""The dashboard and the alert rules use metrics and labels that are served, and all of these metrics.

`tests/cli/test_metrics.py` shows that the defined metrics are served.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from logicalrep.cli.record.metrics import RECORDER, STAGES, WAL_STATUSES
from logicalrep.cli.replicate.metrics import REPLICA

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yaml"
METRICS = {one.name: one for one in RECORDER + REPLICA}
VALUES = {"stage": STAGES, "status": WAL_STATUSES, "kind": ("connection", "copy")}
"""Values of labels that are known beforehand."""
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to every metric."""


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def targets() -> list[tuple[str, str]]:
    """Return expression and legend of each series of the dashboard."""
    return [(one["expr"], one["legendFormat"]) for panel in panels() for one in panel["targets"]]


def parse(expression: str) -> Any:
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def selectors(parsed: Any) -> Iterator[Any]:
    """Yield the selectors of metrics in a parsed expression."""
    if isinstance(parsed, promql_parser.VectorSelector):
        yield parsed
    for name in ("lhs", "rhs", "expr", "args", "vector_selector"):
        inner = getattr(parsed, name, None)
        for one in inner if isinstance(inner, list) else [inner] if inner is not None else []:
            yield from selectors(one)


EXPRESSIONS = [rule["expr"] for rule in rules()] + [expression for expression, _ in targets()]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_metrics_and_labels_of_an_expression_are_served(expression: str) -> None:
    used = list(selectors(parse(expression)))
    assert sorted(one.name for one in used) == sorted(re.findall(r"\b(?:logicalrep_\w+|up)\b", expression))
    for selector in used:
        labels = {one.name: one.value for one in selector.matchers.matchers}
        if selector.name == "up":  # made by Prometheus
            continue
        metric = METRICS[selector.name]
        assert labels.keys() <= {*metric.labels, *OF_PROMETHEUS}
        for name in labels.keys() & VALUES.keys():
            assert labels[name] in VALUES[name]
        if metric.kind == "counter":
            assert re.search(rf"\b(?:rate|increase)\({metric.name}\b", expression), (
                "a counter begins with 0 again"
            )


@pytest.mark.parametrize(("expression", "legend"), targets())
def test_a_legend_names_labels_of_its_metric(expression: str, legend: str) -> None:
    (name,) = {one.name for one in selectors(parse(expression))}
    by = re.search(r"sum by \((\w+)\)", expression)
    labels = {by[1]} if by else {*METRICS[name].labels, *OF_PROMETHEUS}
    assert set(re.findall(r"{{(\w+)}}", legend)) <= labels


def test_the_dashboard_shows_every_metric() -> None:
    shown = {one.name for expression, _ in targets() for one in selectors(parse(expression))}
    assert shown == METRICS.keys()


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in panels()]
    taken = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_says_what_has_happened(rule: dict[str, Any]) -> None:
    assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert "$labels.instance" in rule["annotations"]["summary"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
