"""Which codecs run: the compiled ones where they are installed and fit, else those in Python."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hatch_build
from pgoutput import compiled
from tests.conftest import Run

IN_PYTHON = """
from pgoutput import compiled, envelope, v1, v2, v3, v4
for codec in (envelope, v1, v2, v3, v4):
    assert (codec.decode, codec.encode) == (codec.pure_decode, codec.pure_encode)
assert compiled.kernel is None
print(compiled.HOW)
"""


def python(code: str, **environment: str) -> str:
    """What a new Python prints, with its warnings."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_python_can_be_asked_for() -> None:
    assert python(IN_PYTHON, PGOUTPUT_PURE="1") == "in Python only, as PGOUTPUT_PURE=1 says\n"


def test_python_takes_over_where_nothing_is_compiled() -> None:
    nothing = "import sys; sys.modules['pgoutput._kernel'] = None\n"
    said = python(nothing + IN_PYTHON, PGOUTPUT_PURE="")
    assert said.startswith("in Python only: there was no C compiler with Python's headers (")


@pytest.mark.skipif(compiled.kernel is None, reason=f"pgoutput runs {compiled.HOW}")
def test_a_kernel_of_another_spec_is_not_used() -> None:
    said = python("from pgoutput import _protocols; _protocols.KERNEL = 'other'\n" + IN_PYTHON)
    assert "RuntimeWarning: pgoutput runs in Python only, as its compiled kernel cannot be used: " in said
    assert "compiled from another spec" in said
    assert "install it anew (in a checkout: make setup)" in said


def test_the_command_line_says_it(run: Run) -> None:
    done = run("--version")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("pgoutput 0.")
    assert done.out.endswith(f", {compiled.HOW}\n")


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        (
            "CC",
            "false",
            "install a C compiler and Python's headers (Debian, Ubuntu: apt install gcc python3-dev)",
        ),
        ("CC", "there-is-no-such-compiler", "install a C compiler"),
        ("CFLAGS", "-nostdinc", "install a C compiler and Python's headers"),
        ("PGOUTPUT_PURE", "1", "PGOUTPUT_PURE=1 is set"),
    ],
)
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_where_nothing_can_be_compiled_the_wheel_is_in_python(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str, version: str
) -> None:
    monkeypatch.delenv("PGOUTPUT_PURE", raising=False)
    monkeypatch.setenv(variable, value)
    said: list[str] = []
    app: Any = SimpleNamespace(display_warning=said.append)
    root = str(Path(hatch_build.__file__).parent)
    hook = hatch_build.KernelHook(root, {}, None, None, "", "wheel", app)  # type: ignore[arg-type]
    build_data: dict[str, Any] = {}
    hook.initialize(version, build_data)
    hook.finalize(version, build_data, "")
    assert build_data == {}
    (line,) = said
    assert "\n" not in line
    assert line.startswith(f"pgoutput is built in Python only, without its compiled kernel: {why}")
