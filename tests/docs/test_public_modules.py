"""The public face is small: the table of modules, the names in `__all__`, and errors."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import logicalrep
from logicalrep.versions import LATEST_RELEASED

ROOT = Path(__file__).parents[2]
TABLE = (logicalrep.__doc__ or "").split("\n===")[2]
MODULES = [name.replace("vN", f"v{LATEST_RELEASED}") for name in re.findall(r"`(logicalrep\.[\w.]+)`", TABLE)]


def test_the_table_of_modules_is_short() -> None:
    rows = re.findall(r"^`.*$", TABLE, re.MULTILINE)
    assert 15 < len(rows) <= 20
    assert len({*MODULES}) == len(MODULES) == 26


def test_the_public_names_are_few() -> None:
    names = [name for module in MODULES for name in getattr(importlib.import_module(module), "__all__", ())]
    assert 150 < len(names) <= 200


def test_a_name_has_one_meaning_or_the_page_of_stability_says_why_not() -> None:
    meanings: dict[str, dict[int, str]] = {}
    for module in map(importlib.import_module, MODULES):
        for name in getattr(module, "__all__", ()):
            meanings.setdefault(name, {})[id(getattr(module, name))] = module.__name__
    page = (ROOT / "docs/stability.md").read_text(encoding="utf-8").split("\n## Names with two meanings\n")[1]
    table = page.split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"\w+", row)}
    of_codecs = {"decode", "encode"}  # codecs have no __all__
    assert listed == of_codecs | {name for name, of in meanings.items() if len(of) > 1}


def test_python_runs_the_package_as_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "logicalrep", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"logicalrep {logicalrep.__version__}")


def test_column_functions_of_spark_do_not_need_deltalake() -> None:
    code = """
import sys
sys.modules["deltalake"] = sys.modules["pyroaring"] = None
from logicalrep import MissingExtraError
from logicalrep.spark import decode, from_pgoutput, lsn_text, to_pgoutput
try:
    from logicalrep.spark import replicate
except MissingExtraError as error:
    assert str(error) == "deltalake is missing: pip install 'logicalrep[replica]'", error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["MissingExtraError", *logicalrep.errors.__all__])
def test_each_error_can_be_imported_from_the_package(name: str) -> None:
    assert getattr(logicalrep, name) is getattr(logicalrep.errors, name)
    assert name in logicalrep.__all__
