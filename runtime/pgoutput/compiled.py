"""The compiled kernel (`pgoutput._kernel`), where there is one; else everything runs in Python.

There is none where no C compiler was at hand when the package was installed, and none is used where the
environment says `PGOUTPUT_PURE=1`. Results and errors are the same in both cases.
"""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType
from typing import Final

_NEEDED: Final = "C compiler with Python's headers (Debian, Ubuntu: apt install gcc python3-dev)"


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get("PGOUTPUT_PURE") == "1":
        return None, "in Python only, as PGOUTPUT_PURE=1 says"
    try:
        return importlib.import_module("pgoutput._kernel"), "with its compiled kernel"
    except ModuleNotFoundError:
        return None, f"in Python only: there was no {_NEEDED} to compile its kernel"
    except ImportError as error:
        why = f"in Python only, as its compiled kernel cannot be used: {error}"
        warnings.warn(f"pgoutput runs {why}; install it anew (in a checkout: make setup)", RuntimeWarning, 2)
        return None, why


_loaded = _load()

kernel: Final = _loaded[0]
"""The module, or None."""

HOW: Final = _loaded[1]
"""How pgoutput runs, and why: what `pgoutput --version` says."""
