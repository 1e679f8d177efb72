"""Fuzz one target, in a process prepared by `python -m tests.fuzz`."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from hashlib import sha1
from pathlib import Path

import numpy as np

_flags = sys.getdlopenflags()
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)  # the kernel calls its functions
_coverage = importlib.import_module("_coverage")
sys.setdlopenflags(_flags)

import atheris  # noqa: E402

from tests import instrumented  # noqa: E402
from tests.fuzz.__main__ import CORPUS  # noqa: E402
from tests.fuzz.targets import TARGETS  # noqa: E402


def main() -> None:
    """Fuzz a target for some seconds, or run it on input files. The command line names target and files."""
    name, seconds, *files = sys.argv[1:]
    target = TARGETS[name]
    instrumented.disable_buffer_pool()
    _register_counters()
    inputs, seeds = CORPUS / name, CORPUS / f"{name}-seeds"
    for folder in inputs, seeds:
        folder.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (seeds / sha1(seed).hexdigest()).write_bytes(seed)
    options = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=30", "-malloc_limit_mb=256"]
    options += [f"-artifact_prefix={CORPUS}/{name}-", "-print_final_stats=1", "-reload=0", "-verbosity=0"]

    def run(data: bytes) -> None:
        try:
            target.run(data)
        except BaseException:
            (CORPUS / f"{name}-crash-{sha1(data).hexdigest()}").write_bytes(data)
            raise

    atheris.Setup([name, *options, *(files or [str(inputs), str(seeds)])], run)
    atheris.Fuzz()


def _register_counters() -> None:
    """Register the kernel's coverage counters, and the numbers of its basic blocks, with libFuzzer."""
    start, count = _coverage.counters()
    _register_counters.blocks = np.arange(2 * count, dtype=np.uintp) & ~np.uintp(1)  # type: ignore[attr-defined]
    (core,) = Path(atheris.__file__).parent.glob("core_with_libfuzzer*.so")
    fuzzer = ctypes.CDLL(str(core))
    fuzzer.__sanitizer_cov_8bit_counters_init(ctypes.c_void_p(start), ctypes.c_void_p(start + count))


if __name__ == "__main__":
    main()
