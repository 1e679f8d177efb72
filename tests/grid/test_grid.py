"""The grid has a row for each name, and its most telling cells are right."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from random import Random

import pytest
import yaml

from tests.grid.cells import AXES, TABLE, all_pairs, cells, core, forms, names, rows
from tests.grid.run import FAILURES, report, run_cells
from tests.server import VERSION, Server

NAMES = yaml.safe_load(Path(__file__).with_name("names.yaml").read_text())


def test_every_name_has_a_row_or_a_reason() -> None:
    wanted = {one.strip() for kind, text in NAMES.items() if kind != "commit" for one in text.split(",")}
    assert not wanted - {*names()}
    assert all(sql or reason for _, sql, reason in rows())


def test_every_word_of_a_row_is_known() -> None:
    known = {"quiet", "lone", "pair", "core", "alone", "unsafe", "plain", "root", "whole", "stored"}
    options = {"col", "needs", "since", "table", "schema"}
    words = {word for form in forms() for word in form.words}
    assert {word for word in words if "=" not in word} <= known
    assert {word.partition("=")[0] for word in words if "=" in word} <= options
    assert {one for form in forms() for one in form.option("needs").split(",") if one} == {*TABLE["setups"]}


@pytest.mark.parametrize("version", [10, 15, 18, 19])
def test_each_form_has_all_states_places_and_values(version: int) -> None:
    made = cells(version)
    assert len({one.name for one in made}) == len(made)
    for form in forms():
        if form.words & {"alone", "unsafe", "plain", "root", "whole", "stored"} or not form.runs_on(version):
            continue
        own = [one for one in made if one.forms == (form,)]
        assert len({(one.state, one.place) for one in own}) == 12
        for axis, values in AXES.items():
            assert {one.axes[axis] for one in own} >= {*values} - {"rollback", "copying"}


def test_pairs_of_all_values_are_found() -> None:
    found = all_pairs(AXES, Random(0))
    for first, second in combinations(AXES, 2):
        assert {(row[first], row[second]) for row in found} == {*product(AXES[first], AXES[second])}


def test_the_core_of_the_grid_is_right(tmp_path: Path) -> None:
    chosen = core(VERSION)
    with Server(VERSION) as server:
        results = [*run_cells(server, chosen, tmp_path)]
    assert len(results) == len(chosen)
    assert not any(one.outcome in FAILURES for one in results), report(VERSION, results, 0)
    assert len([one for one in results if one.outcome == "equal"]) > 0.9 * len(chosen)
