"""spec/README.md documents every key and rule, and the generator does not import logicalrep."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from codegen import expressions, model, stream_rules
from codegen.load import SECTIONS
from codegen.roles import MEANINGS, Meaning, Meanings
from tests.codegen.spec_copy import ROOT

README = (ROOT / "spec/README.md").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "codegen").rglob("*.py"))


@pytest.mark.parametrize("record", [*SECTIONS.values(), model.Cell, model.Entry, model.Case])
def test_the_readme_documents_every_key(record: type[msgspec.Struct]) -> None:
    missing = [key for key in record.__struct_fields__ if f"`{key}`" not in README]
    assert missing == []


def test_the_readme_documents_every_section() -> None:
    headings = {name for line in re.findall(r"^## (.*)$", README, re.MULTILINE) for name in line.split(", ")}
    assert SECTIONS.keys() - headings == set()


def test_the_readme_documents_every_evolution_rule() -> None:
    source = (ROOT / "codegen/lock.py").read_text(encoding="utf-8")
    rules = set(re.findall(r"released-[a-z]+-[a-z]+", source))
    assert rules == set(re.findall(r"^\| `(released-[a-z-]+)` \|", README, re.MULTILINE))


def _table(heading: str) -> list[list[str]]:
    """Return the cells of each row of the README's table whose first column has this heading."""
    lines = README.split(f"\n| {heading} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_readme_lists_every_role_with_its_meanings() -> None:
    listed = {
        role.strip("`"): Meanings(*(tuple(re.findall(r"`(\w+)`", words)) for words in meanings))
        for role, _, *meanings in _table("role")
    }
    assert listed == MEANINGS


def test_the_readme_lists_every_meaning() -> None:
    listed = [meaning for row in _table("meaning") for meaning in re.findall(r"`(\w+)`", row[0])]
    used = {meaning for meanings in MEANINGS.values() for some in meanings for meaning in some}
    assert sorted(listed) == sorted({*get_args(Meaning), "none"}) == sorted(used | {"none"})


def test_the_readme_lists_every_word_of_expressions() -> None:
    listed = [word for row in _table("word") for word in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(stream_rules.WORDS)
    section = README.split("\n## rules\n")[1].split("\n## ")[0]
    others = (*expressions.FUNCTIONS, *expressions.ATTRIBUTES, *stream_rules.OPTIONS)
    assert [word for word in others if not re.search(rf"`{word}[`(]", section)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_codegen_does_not_import_logicalrep(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(from|import) logicalrep", source, re.MULTILINE)
