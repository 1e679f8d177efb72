"""Run tests with specs that have other protocol versions: `make specs`.

The protocol versions of servers will change. So neither tests nor Python modules list them. With `--each`,
this program takes longer and needs the network: it runs all tests of the generator, `make check`,
`make typescript` and the test vectors with each of the foreign versions alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.codegen.derived import example, without_oldest
from tests.codegen.free import EXAMPLE, ROOT
from tests.codegen.spec_copy import SpecCopy

FOREIGN = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "tests/codegen/foreign").iterdir()}
"""Versions 5 as other people write them who have not seen the tests: pages like the end of spec/README.md."""


def two(spec: SpecCopy) -> None:
    """Add two versions to a spec, the README's example and another, and mark the first as released."""
    for page in (EXAMPLE, FOREIGN["ddl"]):
        example(spec, page)
    spec.write(spec.read().replace("released: false", "released: true", 1))


def three(spec: SpecCopy) -> None:
    """Add three versions to a spec, of which one has the very names that tests invent."""
    for name in ("words", "sequence", "heartbeat"):
        example(spec, FOREIGN[name])


SPECS: dict[str, Callable[[SpecCopy], None]] = {
    "two": two,
    "three": three,
    "without_oldest": without_oldest,
}
MORE_TESTS = {"three": ["tests/codegen"]}
"""By spec, tests that run with it besides those of the command line."""
EACH = {name: partial(example, blocks=page) for name, page in {"readme": EXAMPLE, **FOREIGN}.items()}
COMMANDS = (
    "{quick} tests/codegen tests/vectors tests/javascript tests/codec",
    "-m ruff check",
    "-m ruff format --check",
    "-m mypy",
    "-m codegen --check",
    "-m tests.javascript.package",
    "-m logicalrep.cli vectors -o vectors",
)


@contextmanager
def project(name: str, derive: Callable[[SpecCopy], None]) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a copy of the project with another spec and the code generated from it, and its environment."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        copy = Path(folder, "project")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "dist", "site"))
        derive(SpecCopy(copy / "spec"))
        # A .venv of its own, so that nothing finds the modules of this checkout, such as a removed codec.
        venv.create(copy / ".venv", symlinks=True)
        (site,) = copy.glob(".venv/lib/python*/site-packages")
        paths = (copy / "generated", copy / "runtime", sysconfig.get_path("purelib"))
        (site / "project.pth").write_text("\n".join(map(str, paths)))
        environment = os.environ | {"LOGICALREP_PURE": "1"}
        run(copy, environment, "-m codegen --release", stdout=subprocess.DEVNULL)
        yield copy, environment


def run(copy: Path, environment: dict[str, str], command: str, stdout: int | None = None) -> bool:
    """Run a command of the Python of a copy of the project; return success."""
    python = str(copy / ".venv/bin/python")
    arguments = [one.replace("\xa0", " ") for one in command.split(" ")]
    return not subprocess.call([python, *arguments], cwd=copy, env=environment, stdout=stdout)


def main(arguments: list[str]) -> None:
    each = arguments == ["--each"]
    quick = f"-m pytest -q -n {os.cpu_count()} --hypothesis-profile=quick"
    for name, derive in (EACH if each else SPECS).items():
        print(f"==> {name}", flush=True)
        tests = [*arguments, *MORE_TESTS.get(name, ())]
        commands = [one.format(quick=quick) for one in COMMANDS]
        if not each:
            commands = [f"{quick} -m not\xa0slow\xa0and\xa0not\xa0nightly {' '.join(tests)}"]
        with project(name, derive) as (copy, environment):
            failed = [one for one in commands if not run(copy, environment, one)]
        if failed:
            sys.exit(f"with the spec {name} of tests/specs.py, these failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
