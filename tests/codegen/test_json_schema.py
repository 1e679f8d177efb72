"""The JSON Schema of the spec accepts the spec, and refuses the mistakes that the loader's types refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codegen import json_schema, model, roles
from codegen.load import SECTIONS
from codegen.yamlfile import YamlFile
from tests.codegen.spec_copy import ROOT, SpecCopy
from tests.codegen.test_mistakes import MISTAKES, Mistake, make_mistake

SCHEMA = json.loads(json_schema.text())
TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
KEYWORDS = {
    "$ref", "$defs", "$schema", "$comment", "title", "description", "default", "type", "enum", "anyOf",
    "pattern", "items", "properties", "required", "additionalProperties",
}  # fmt: skip
FILES = sorted((ROOT / "spec").glob("*.yaml"))
WRONG_KEYS_AND_TYPES = re.compile(
    r"unknown (key|section)|takes (text|true|a (number|list|mapping|range))"
    r"|: `(?!streaming)\w+`: unknown value|^\w+: `\w+` is missing$|is not a gate"
)
"""Pattern of the errors about wrong keys and types, which the JSON Schema finds too."""

NOT_IN_SCHEMA = ("no tag", "literal of several bytes")
"""Names of mistakes that are none in a spec without versions, so that the JSON Schema does not find them."""


def errors(value: Any, schema: dict[str, Any], path: str = "$") -> Iterator[str]:
    """Yield the paths at which a value violates a schema that has only the keywords `KEYWORDS`."""
    assert schema.keys() <= KEYWORDS
    if "$ref" in schema:
        yield from errors(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], path)
    if "anyOf" in schema and all(any(errors(value, one)) for one in schema["anyOf"]):
        yield path
    if "enum" in schema and value not in schema["enum"]:
        yield path
    if "type" in schema and type(value) is not TYPES[schema["type"]]:
        yield path
        return
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield path
    for index, item in enumerate(value if "items" in schema else ()):
        yield from errors(item, schema["items"], f"{path}[{index}]")
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{path}.{key}"
    if schema.get("type") == "object":
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
            if inner is False:
                yield f"{path}.{key}"
            elif inner is not True:
                yield from errors(item, inner, f"{path}.{key}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_spec_follows_the_schema(path: Path) -> None:
    assert [*errors(YamlFile(path).data, SCHEMA)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_of_the_spec_names_the_schema(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=../generated/spec.schema.json"
    assert (path.parent / first.split("=")[1]).is_file()


@pytest.mark.parametrize(
    "mistake",
    [one for one in MISTAKES if WRONG_KEYS_AND_TYPES.search(one.words) and one.name not in NOT_IN_SCHEMA],
    ids=lambda mistake: mistake.name.replace(" ", "-"),
)
def test_the_schema_refuses_wrong_keys_and_types(spec: SpecCopy, mistake: Mistake) -> None:
    make_mistake(spec, mistake)
    assert any(errors(YamlFile(spec.folder / mistake.file).data, SCHEMA))


def test_the_schema_describes_every_record_and_lists_roles_and_meanings() -> None:
    records: set[type[Any]] = {
        *SECTIONS.values(),
        model.OptionValue,
        model.EnumValue,
        model.FlagBit,
        model.Cell,
        model.Entry,
        model.Case,
    }
    described = SCHEMA["$defs"]
    assert described.keys() == {record.__name__ for record in records}
    assert all(described[record.__name__]["description"] == record.__doc__ for record in records)
    assert set(described["Message"]["properties"]["role"]["enum"]) == roles.MEANINGS.keys()
    used = {meaning for meanings in roles.MEANINGS.values() for some in meanings for meaning in some}
    assert set(described["Entry"]["properties"]["means"]["enum"]) == used | {"none"}
