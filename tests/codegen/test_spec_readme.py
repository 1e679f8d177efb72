"""spec/README.md documents every key and rule, and the generator does not import pgoutput."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from codegen import model
from codegen.load import SECTIONS
from tests.codegen.spec_copy import ROOT

README = (ROOT / "spec/README.md").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "codegen").rglob("*.py"))


@pytest.mark.parametrize("record", [*SECTIONS.values(), model.Cell, model.Entry])
def test_the_readme_documents_every_key(record: type[msgspec.Struct]) -> None:
    missing = [key for key in record.__struct_fields__ if f"`{key}`" not in README]
    assert missing == []


def test_the_readme_documents_every_section() -> None:
    headings = {name for line in re.findall(r"^## (.*)$", README, re.MULTILINE) for name in line.split(", ")}
    assert SECTIONS.keys() - headings == set()


def test_the_readme_documents_every_evolution_rule() -> None:
    source = (ROOT / "codegen/evolution.py").read_text(encoding="utf-8")
    rules = set(re.findall(r"released-[a-z]+-[a-z]+", source))
    assert rules == set(re.findall(r"^\| `(released-[a-z-]+)` \|", README, re.MULTILINE))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_codegen_does_not_import_pgoutput(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(from|import) pgoutput", source, re.MULTILINE)
