"""Run the kernel's tests with a kernel that is instrumented by gcc's sanitizers.

python -m tests.sanitize                  all tests of the kernel
python -m tests.sanitize tests/codec -x   selected tests; arguments are those of pytest
"""

from __future__ import annotations

import sys

from tests import instrumented

TESTS = (
    *("codec", "columns", "fuzz", "recorder/test_copy_format.py", "recording", "synth"),
    *("values/test_from_arrow.py", "verification/test_row_texts.py", "views"),
)
EXCLUDED = (
    "pure",  # runs without the kernel
    "kernel_choice",  # compiles other kernels
    *("oracle", "of_the_server"),  # start a server
    "leaks_no_memory",  # measures memory, which the sanitizers change
)
"""Words in test names. Tests with one of these words in their names are not run."""


def pytest_configure() -> None:
    """Disable the kernel's buffer pool: pytest calls this in the process that runs the tests."""
    instrumented.disable_buffer_pool()


def main() -> int:
    """Run the tests; return pytest's exit code, or 0 if the machine has no sanitizers."""
    options = ["-q", "-p", "tests.sanitize", "-k", " and ".join(f"not {name}" for name in EXCLUDED)]
    options += ["-p", "no:faulthandler", "--capture=sys"]  # let the sanitizers print
    tests = sys.argv[1:] or [f"tests/{name}" for name in TESTS]
    try:
        with instrumented.instrumented_environment() as environment:
            return instrumented.run_module("pytest", [*options, *tests], environment)
    except instrumented.ToolMissing as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main())
