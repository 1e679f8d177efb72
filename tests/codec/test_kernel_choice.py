"""logicalrep uses the compiled codecs if they are installed for its spec, otherwise the Python codecs."""

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
from logicalrep import compiled
from tests.conftest import Run

IN_PYTHON = """
from logicalrep import compiled, envelope
from logicalrep.versions import CODECS
for codec in (envelope, *CODECS.values()):
    assert (codec.decode, codec.encode) == (codec.pure_decode, codec.pure_encode)
assert compiled.kernel is None
print(compiled.HOW)
"""


def python(code: str, **environment: str) -> str:
    """Run code in a new Python process; return the process's output and warnings."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_logicalrep_pure_selects_the_python_codecs() -> None:
    assert python(IN_PYTHON, LOGICALREP_PURE="1") == "in Python only, as LOGICALREP_PURE=1 says\n"


def test_python_codecs_are_used_without_a_kernel() -> None:
    nothing = "import sys; sys.modules['logicalrep._kernel'] = None\n"
    output = python(nothing + IN_PYTHON, LOGICALREP_PURE="")
    assert output.startswith("in Python only: there was no C compiler with Python's headers (")


@pytest.mark.skipif(compiled.kernel is None, reason=f"logicalrep runs {compiled.HOW}")
def test_a_kernel_compiled_from_other_sources_is_not_used() -> None:
    output = python("from logicalrep import _protocols; _protocols.KERNEL = 'other'\n" + IN_PYTHON)
    assert "RuntimeWarning: logicalrep runs in Python only, as its compiled kernel cannot be used: " in output
    assert "compiled from another spec or kernel source" in output
    assert "install it anew (in a checkout: make setup)" in output


def test_version_option_states_the_codec(run: Run) -> None:
    done = run("--version")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("logicalrep 0.")
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
        ("LOGICALREP_PURE", "1", "LOGICALREP_PURE=1 is set"),
    ],
)
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_a_wheel_is_built_without_kernel_if_it_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str, version: str
) -> None:
    monkeypatch.delenv("LOGICALREP_PURE", raising=False)
    monkeypatch.setenv(variable, value)
    output: list[str] = []
    app: Any = SimpleNamespace(display_warning=output.append)
    root = str(Path(hatch_build.__file__).parent)
    hook = hatch_build.KernelHook(root, {}, None, None, "", "wheel", app)  # type: ignore[arg-type]
    build_data: dict[str, Any] = {}
    hook.initialize(version, build_data)
    hook.finalize(version, build_data, "")
    assert build_data == {}
    (line,) = output
    assert "\n" not in line
    assert line.startswith(f"logicalrep is built in Python only, without its compiled kernel: {why}")
