"""Check that the search of the built documentation finds every public name. Run by `make docs`.

Usage: python -m tests.docs.check_site [site]
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from docs.hooks import public_modules


def public_names(module_name: str) -> Iterator[str]:
    """Yield a module's `__all__`, or without `__all__` the public classes and functions it defines."""
    module = importlib.import_module(module_name)
    if hasattr(module, "__all__"):
        yield from module.__all__
        return
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name


def missing_names(site: Path) -> list[str]:
    """Return the public names that a built site's search index lacks, as `module.name`."""
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    locations = {entry["location"] for entry in index["docs"]}
    missing = []
    for module in public_modules():
        page = f"reference/api/{module}.html"
        if page not in locations:
            missing.append(module)
            continue
        missing += [
            f"{module}.{name}"
            for name in public_names(module)
            if not name.startswith("__") and f"{page}#{module}.{name}" not in locations
        ]
    return missing


def main() -> int:
    """Print the public names that the site's search does not find; return 1 if there are any, else 0."""
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    missing = missing_names(site)
    for name in missing:
        print(f"{name}: public, but the search of {site} does not find it", file=sys.stderr)
    if not missing:
        names = sum(1 for module in public_modules() for _ in public_names(module))
        print(f"{site}: the search finds all {names} public names")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
