"""Writes the generated files, and tells which of them are not as they should be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_IGNORED = ("__pycache__",)


def compare(out: Path, files: Mapping[str, str]) -> dict[str, list[str]]:
    """The files below `out` that are stale, missing or orphaned, each sorted by name."""
    there = {
        path.relative_to(out).as_posix()
        for path in out.rglob("*")
        if path.is_file() and not any(part in _IGNORED for part in path.parts)
    }
    return {
        "stale": sorted(name for name in files if name in there and _text(out / name) != files[name]),
        "missing": sorted(name for name in files if name not in there),
        "orphaned": sorted(there - files.keys()),
    }


def write(out: Path, files: Mapping[str, str]) -> list[str]:
    """Make `out` hold exactly `files`; what is right already is not touched. Returns what changed."""
    state = compare(out, files)
    for name in state["stale"] + state["missing"]:
        write_file(out / name, files[name])
    for name in state["orphaned"]:
        (out / name).unlink()
    return [f"{'removed' if kind == 'orphaned' else 'wrote'} {name}" for kind, names in state.items() for name in names]


def write_file(path: Path, text: str) -> None:
    """Write one file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")
