"""`python -m codegen export kaitai` describes every message, field and condition of the spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from codegen import kaitai
from codegen.load import load
from codegen.model import Spec
from codegen.resolve import MessageView, resolve, snake
from tests.codegen.spec_copy import ROOT, Run

SPEC = load(ROOT / "spec")
OLDEST = min(SPEC.versions)
FILES = {name: yaml.safe_load(text) for name, text in kaitai.files(SPEC).items()}


def exported(files: dict[str, Any], spec: Spec) -> list[tuple[dict[str, Any], MessageView]]:
    """Return each message of each version and of the envelope, with the `.ksy` file that describes it."""
    views = {f"pgoutput_v{n}.ksy": resolve(spec, spec.protocols["pgoutput"], n) for n in spec.versions}
    views["pgoutput_envelope.ksy"] = resolve(spec, spec.protocols["replication"], None)
    assert files.keys() == views.keys()
    return [(files[name], message) for name, view in views.items() for message in view.messages]


def names(described: dict[str, Any]) -> set[str]:
    return {entry["id"] for entry in described["seq"]} | set(described.get("instances", ()))


@pytest.mark.parametrize(
    ("file", "message"),
    exported(FILES, SPEC),
    ids=lambda one: one.name if isinstance(one, MessageView) else one["meta"]["id"],
)
def test_each_message_has_its_tag_and_all_fields_with_their_conditions(
    file: dict[str, Any], message: MessageView
) -> None:
    assert file["enums"]["message_type"][ord(message.tag)]["id"] == message.snake
    assert file["seq"][1]["type"]["cases"][f"message_type::{message.snake}"].startswith(message.snake)
    described = file["types"][message.snake]
    assert {field.name for field in message.members} <= names(described)
    conditional = {field.name for field in message.members if field.when}
    entries = {
        entry["id"].removesuffix("_bytes") for entry in described["seq"] if entry.get("if") in CONDITIONS
    }
    assert conditional == entries & {field.name for field in message.members}
    for field in message.members:
        if field.element == "struct":
            assert {inner.name for inner in field.fields} <= names(file["types"][snake(field.type)])


CONDITIONS = ("in_stream", 'streaming == "parallel"')


def test_an_optional_choice_is_told_from_the_tag_that_follows_it() -> None:
    update = FILES[f"pgoutput_v{OLDEST}.ksy"]["types"]["update"]
    choice = [one for one in update["seq"] if one["id"] not in ("xid", "relation_oid")]
    assert [(one["id"], one.get("type"), one.get("if")) for one in choice] == [
        ("tag_key_or_old", "u1", None),
        ("key", "tuple_data", "tag_key_or_old == 75"),
        ("old", "tuple_data", "tag_key_or_old == 79"),
        ("tag_new", None, "tag_key_or_old != 78"),
        ("new", "tuple_data", None),
    ]
    assert choice[0]["valid"] == {"any-of": [75, 79, 78]}


def test_what_bytes_do_not_say_is_a_parameter_where_it_is_needed() -> None:
    parameters = {name: [one["id"] for one in file.get("params", ())] for name, file in FILES.items()}
    assert parameters.pop("pgoutput_envelope.ksy") == parameters.pop("pgoutput_v1.ksy", []) == []
    assert parameters["pgoutput_v2.ksy"] == ["in_stream"]
    newest = FILES[f"pgoutput_v{max(SPEC.versions)}.ksy"]
    calls = newest["seq"][1]["type"]["cases"]
    assert calls["message_type::insert"] == "insert(in_stream)"
    assert calls["message_type::stream_abort"] == "stream_abort(streaming)"
    assert calls["message_type::commit"] == "commit"


def test_each_version_has_the_messages_of_prepared_transactions_which_its_clients_receive() -> None:
    for name, file in FILES.items():
        assert ("begin_prepare" in file["types"]) == (name != "pgoutput_envelope.ksy")


def test_a_new_version_with_lists_of_tuples_and_structs_is_exported(five: Path) -> None:
    spec = load(five.parent / "spec")
    files = {name: yaml.safe_load(text) for name, text in kaitai.files(spec).items()}
    for file, message in exported(files, spec):
        assert {field.name for field in message.members} <= names(file["types"][message.snake])


def test_the_command_writes_the_files_into_a_folder(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "ksy"
    assert run("export", "kaitai", "--out", out, "--spec", ROOT / "spec").code == 0
    assert {path.name: yaml.safe_load(path.read_text()) for path in out.iterdir()} == FILES
    other = run("export", "protobuf")
    assert other.code != 0
