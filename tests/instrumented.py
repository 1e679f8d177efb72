"""A kernel that gcc's sanitizers watch: each access to memory, and what C leaves undefined.

AddressSanitizer and UBSan stop the process at the first fault, and say where it is.
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
from pgoutput import compiled

_CHECKS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -O1 -g -fno-omit-frame-pointer"
_LIBRARIES = ("libasan.so", "libubsan.so", "libstdc++.so")  # the last as they look for its functions first
_ENVIRONMENT = {
    # Python frees little when it ends; where it asked for memory is of no interest.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=2",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    "PYTHONMALLOC": "malloc",  # small objects, too, have memory of their own
    "PGOUTPUT_PURE": "0",
}


class Unable(Exception):
    """There are no sanitizers here; the text says why."""


@contextmanager
def python(flags: str = "") -> Iterator[dict[str, str]]:
    """The environment in which Python has such a kernel.

    Args:
        flags: What gcc is told besides.

    Raises:
        Unable: gcc or its libraries are missing.
    """
    preload = _libraries()
    with TemporaryDirectory() as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CC", "gcc")
            patch.setenv("CFLAGS", f"{_CHECKS} {flags}")
            build(SOURCE, Path(folder, "pgoutput"))
        yield {**os.environ, **_ENVIRONMENT, "PYTHONPATH": folder, "LD_PRELOAD": " ".join(preload)}


def call(module: str, arguments: Sequence[str], environment: dict[str, str]) -> int:
    """Run a module there; give how it ended."""
    return subprocess.run([sys.executable, "-m", module, *arguments], env=environment).returncode


def without_pool() -> None:
    """Have each buffer of the kernel just as large as it must be, so that every byte behind is a fault."""
    if compiled.kernel is None:
        sys.exit(f"pgoutput runs {compiled.HOW}")
    compiled.kernel.set_pool_limit(0)


def _libraries() -> list[str]:
    if shutil.which("gcc") is None:
        raise Unable("there is no gcc")
    found = []
    for name in _LIBRARIES:
        asked = subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        )
        found.append(asked.stdout.strip())
        if found[-1] == name:
            raise Unable(f"gcc has no {name} (Fedora: dnf install libasan libubsan)")
    return found
