"""Hide pandas from commands that do not need it: pyarrow would import it with its first array.

The import takes 0.3 s and 45 MB.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Final


class _WithoutPandas(MetaPathFinder):
    """Import hook that hides pandas."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Raise ModuleNotFoundError for pandas; leave other modules to other finders."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


_WITHOUT_PANDAS: Final = _WithoutPandas()


def hide_pandas() -> None:
    """Make imports of pandas fail in this process."""
    if _WITHOUT_PANDAS not in sys.meta_path:
        sys.meta_path.insert(0, _WITHOUT_PANDAS)


def show_pandas() -> None:
    """Allow imports of pandas again. Must be called before pyarrow makes its first array.

    pyarrow tries to import pandas with its first array, and does not try again.
    """
    if _WITHOUT_PANDAS in sys.meta_path:
        sys.meta_path.remove(_WITHOUT_PANDAS)
