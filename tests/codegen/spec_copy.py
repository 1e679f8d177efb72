"""Copies of the spec that a test may change, and the types of the fixture `run`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from tests.codegen.free import ROOT as ROOT, free


class Result(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


class Run(Protocol):
    """Type of the fixture `run`: a function that runs `python -m codegen` with these arguments."""

    def __call__(self, *arguments: str | Path) -> Result: ...


class SpecCopy:
    """A copy of the spec's folder that a test may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str = "pgoutput.yaml") -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def write(self, text: str, name: str = "pgoutput.yaml") -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def replace(self, old: str, new: str, name: str = "pgoutput.yaml") -> None:
        """Replace a text that occurs exactly once in the file `name`."""
        text, old, new = self.read(name), free(old, yaml=True), free(new, yaml=True)
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {name}"
        self.write(text.replace(old, new), name)

    def replace_last(self, old: str, new: str, name: str = "pgoutput.yaml") -> None:
        """Replace the last occurrence of a text in the file `name`."""
        old, new = free(old, yaml=True), free(new, yaml=True)
        head, found, tail = self.read(name).rpartition(old)
        assert found, f"{old!r} is not in {name}"
        self.write(head + new + tail, name)

    def add(self, key: str, block: str, name: str = "pgoutput.yaml") -> None:
        """Append the lines `block` to the YAML block that starts with the line `key` in the file `name`.

        What `block` invents is replaced where the project's spec has it, see `tests.codegen.free`.
        """
        key, block = free(key, yaml=True), free(block, yaml=True)
        lines = self.read(name).splitlines(keepends=True)
        start = lines.index(key + "\n")
        depth = len(key) - len(key.lstrip())
        end = start + 1
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" " * (depth + 1))):
            end += 1
        while not lines[end - 1].strip():
            end -= 1
        self.write("".join([*lines[:end], block, *lines[end:]]), name)
