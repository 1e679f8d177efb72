"""The compiled kernel (`logicalrep._kernel`), which makes the codecs and batch decoding faster.

logicalrep runs without the kernel if no C compiler was available at installation, or if the environment
variable `LOGICALREP_PURE` is `1`. Results and errors are the same with and without the kernel.
"""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType
from typing import Final

__all__ = ["HOW"]

_COMPILER: Final = "C compiler with Python's headers (Debian, Ubuntu: apt install gcc python3-dev)"


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get("LOGICALREP_PURE") == "1":
        return None, "in Python only, as LOGICALREP_PURE=1 says"
    try:
        return importlib.import_module("logicalrep._kernel"), "with its compiled kernel"
    except ModuleNotFoundError:
        return None, f"in Python only: there was no {_COMPILER} to compile its kernel"
    except ImportError as error:
        why = f"in Python only, as its compiled kernel cannot be used: {error}"
        warnings.warn(
            f"logicalrep runs {why}; install it anew (in a checkout: make setup)", RuntimeWarning, 2
        )
        return None, why


_loaded = _load()

kernel: Final = _loaded[0]
"""The extension module `logicalrep._kernel`, or None if logicalrep runs in Python only."""

HOW: Final = _loaded[1]
"""Text that completes the sentence "logicalrep runs …": whether the kernel is used, and if not, why."""
