"""The error for a missing extra (optional dependencies) shows how to install the extra."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from logicalrep import __version__
from tests.truth import CAPTURES

ROOT = Path(__file__).parents[2]
CAPTURE = str(CAPTURES / "pg10_p1.jsonl.gz")
BLOCK = "import sys; sys.modules.update(dict.fromkeys({packages!r}))\n"
RUN = "sys.argv = ['logicalrep', *{arguments!r}]; from logicalrep.cli import main; main()"


def run_without(packages: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that cannot import the given packages."""
    program = BLOCK.format(packages=packages) + code
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)


def run_cli_without(packages: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_without(packages, RUN.format(arguments=arguments))


def test_version_works_in_a_core_install() -> None:
    done = run_cli_without(["typer", "rich", "numpy", "pyarrow", "psycopg"], "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"logicalrep {__version__}, ")


def test_main_names_are_imported_at_the_first_access() -> None:
    code = (
        "import logicalrep\n"
        "assert 'logicalrep.versions' not in sys.modules\n"
        "assert set(logicalrep.__all__) <= set(dir(logicalrep))\n"
        "insert = logicalrep.decode(b'I\\0\\0\\x40\\0N\\0\\1t\\0\\0\\0\\1x')\n"
        "print(logicalrep.encode(insert), logicalrep.Tables.__name__)\n"
        "logicalrep.replicate"
    )
    done = run_without(["pyarrow"], code)
    assert done.stdout == "b'I\\x00\\x00@\\x00N\\x00\\x01t\\x00\\x00\\x00\\x01x' Tables\n"
    assert done.stderr.endswith("pip install 'logicalrep[replica]'\n"), done.stderr


@pytest.mark.parametrize(
    ("packages", "arguments", "extras"),
    [
        (["typer", "rich"], ["decode", CAPTURE], "cli"),
        (["rich"], ["--help"], "cli"),
        (["psycopg"], ["record", "--slot=s", "--publication=p", "--recording=r"], "cli,recorder"),
        (
            ["prometheus_client"],
            ["record", "--slot=s", "--publication=p", "--recording=r", "--metrics=127.0.0.1:0"],
            "cli,metrics",
        ),
        (["obstore"], ["record", "--slot=s", "--publication=p", "--recording=s3://b/r"], "cli,store"),
        (["pyarrow"], ["segments", "r"], "cli,arrow"),
        (["pyarrow"], ["status", "--recording=r"], "cli,arrow"),
        (["pyarrow"], ["decode", "r.parquet"], "cli,arrow"),
        (["numpy", "pyarrow"], ["synth", "--out=-"], "cli,synth"),
        (["numpy", "pyarrow"], ["vectors", "--out=kit"], "cli,synth"),
        (["numpy", "pyarrow"], ["vectors", "run", "true"], "cli,synth"),
        (["duckdb"], ["serve", "--recording", CAPTURE], "cli,standin"),
        (["deltalake"], ["replicate", "--recording=r", "--target=t"], "cli,replica"),
        (["pyiceberg"], ["replicate", "--recording=r", "--target=t", "--iceberg=local"], "cli,iceberg"),
        (["pyspark"], ["replicate", "--recording=r", "--target=t", "--spark"], "cli,spark"),
        (["psycopg"], ["sync", "--publication=p", "--target=t"], "cli,recorder"),
        (["deltalake"], ["sync", "--publication=p", "--target=t"], "cli,replica"),
        (["deltalake"], ["tables", "t"], "cli,replica"),
        (["deltalake"], ["verify", "--recording=r", "--target=t"], "cli,replica"),
        (["psycopg"], ["verify", "--recording=r", "--target=t"], "cli,recorder"),
    ],
)
def test_a_command_names_its_missing_extras(packages: list[str], arguments: list[str], extras: str) -> None:
    done = run_cli_without(packages, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"logicalrep: {packages[0]} is missing: pip install 'logicalrep[{extras}]'\n"


@pytest.mark.parametrize(
    ("statement", "package", "extra"),
    [
        ("import logicalrep.columns", "pyarrow", "arrow"),
        ("import logicalrep.recorder", "psycopg", "recorder"),
        ("import logicalrep.recording", "pyarrow", "arrow"),
        ("import logicalrep.replica", "deltalake", "replica"),
        ("import logicalrep.spark", "pyspark", "spark"),
        ("import logicalrep.spark; logicalrep.spark.replicate", "deltalake", "replica"),
        ("import logicalrep.standin", "duckdb", "standin"),
        ("import logicalrep.synth", "pyarrow", "synth"),
        ("from logicalrep.testing import shop", "hypothesis", "testing"),
    ],
)
def test_an_import_names_its_missing_extra(statement: str, package: str, extra: str) -> None:
    done = run_without([package], statement)
    assert done.returncode == 1
    assert f"{package} is missing: pip install 'logicalrep[{extra}]'" in done.stderr.splitlines()[-1]


def test_an_extra_installs_what_its_code_needs() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    installed = {
        extra: {re.split(r"\W", package.replace("-", "_"))[0] for package in packages}
        for extra, packages in pyproject["project"]["optional-dependencies"].items()
    }
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "runtime").rglob("*.py")]
    asked = {call for source in sources for call in re.findall(r"\brequire\(([^)]*)\)", source)}
    needed = [re.findall(r'"(\w+)"', call) for call in asked]
    brought = {"rich", "sqlalchemy"}  # by typer and pyiceberg
    missing = [
        (extra, package)
        for extra, *packages in filter(None, needed)
        for package in {*packages} - installed[extra] - brought
    ]
    assert missing == []


def test_the_pytest_plugin_loads_without_extras() -> None:
    done = run_without(["hypothesis", "numpy", "pyarrow"], "import logicalrep.testing.plugin")
    assert (done.returncode, done.stderr) == (0, "")
