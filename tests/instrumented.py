"""Run Python with a kernel that is instrumented by gcc's AddressSanitizer and UBSan.

The sanitizers stop the process at the first invalid memory access or undefined behaviour, and print the
place in the code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hatch_build import SOURCE, build
from logicalrep import compiled

_CHECKS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -O1 -g -fno-omit-frame-pointer"
_LIBRARIES = ("libasan.so", "libubsan.so", "libstdc++.so")  # sanitizers resolve its functions at their start
_ENVIRONMENT = {
    # Python does not free all memory at exit, so leaks are not reported.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=2",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    "PYTHONMALLOC": "malloc",  # allocate small objects separately, so that overruns are found
    "LOGICALREP_PURE": "0",
}


class ToolMissing(Exception):
    """A tool is missing on this machine. The text of the exception names the tool."""


@contextmanager
def instrumented_environment(flags: str = "") -> Iterator[dict[str, str]]:
    """Compile an instrumented kernel; yield the environment variables with which Python imports it.

    Args:
        flags: Additional flags for gcc.

    Raises:
        ToolMissing: gcc or a library of its sanitizers is missing.
    """
    preload = _find_libraries()
    with TemporaryDirectory() as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CC", "gcc")
            patch.setenv("CFLAGS", f"{_CHECKS} {flags}")
            build(SOURCE, Path(folder, "logicalrep"))
        yield {**os.environ, **_ENVIRONMENT, "PYTHONPATH": folder, "LD_PRELOAD": " ".join(preload)}


def run_module(module: str, arguments: Sequence[str], environment: dict[str, str]) -> int:
    """Run a Python module with environment variables; return its exit code."""
    return subprocess.run([sys.executable, "-m", module, *arguments], env=environment).returncode


def disable_buffer_pool() -> None:
    """Make the kernel allocate buffers of exact size, so that the sanitizers find every overrun.

    Raises:
        SystemExit: logicalrep runs without the kernel.
    """
    if compiled.kernel is None:
        sys.exit(f"logicalrep runs {compiled.HOW}")
    compiled.kernel.set_pool_limit(0)


def _find_libraries() -> list[str]:
    if shutil.which("gcc") is None:
        raise ToolMissing("gcc is not installed")
    paths = []
    for name in _LIBRARIES:
        output = subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        )
        paths.append(output.stdout.strip())
        if paths[-1] == name:
            raise ToolMissing(f"gcc has no {name} (Fedora: dnf install libasan libubsan)")
    return paths
