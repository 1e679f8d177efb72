"""The vectors are complete, the same in each run, and right for the codecs in Python and in the kernel."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from logicalrep import _protocols
from logicalrep._walk import walk
from logicalrep.capturefile import Header, encode_header, encode_record
from logicalrep.errors import RecordingError
from logicalrep.jsonlines import from_json
from logicalrep.stream import encode_for
from logicalrep.vectors import Request, Vector, answer, read_kit, write_kit
from logicalrep.vectors.judging import Level, judge
from logicalrep.vectors.kit_schema import schema
from logicalrep.vectors.model import Answer, Json, Manifest
from logicalrep.vectors.streams import capture_vectors
from tests.codec.cases import CASES, CONTEXTS, TWO_PHASE
from tests.truth import CAPTURES
from tests.versions import RELEASED


def request(vector: Vector) -> Request:
    return Request(id=vector.id, version=vector.version, options=vector.options, messages=vector.messages)


@pytest.mark.usefixtures("both")
def test_logicalrep_passes_all_vectors(vectors: list[Vector]) -> None:
    verdicts = [judge(one, answer(request(one)), lenient=False, level="exact") for one in vectors]
    assert [one for one in verdicts if one.outcome != "passed"] == []


def test_expected_messages_are_the_bytes(vectors: list[Vector]) -> None:
    for one in vectors:
        for data, expected in zip(one.messages, one.expected, strict=False):
            if one.version is not None:
                assert encode_for(from_json(expected), one.version).hex() == data, one.id


def test_ids_are_unique(vectors: list[Vector]) -> None:
    assert len({one.id for one in vectors}) == len(vectors)


def test_every_message_has_a_vector_in_every_version_and_context(vectors: list[Vector]) -> None:
    found = {
        (one.version, one.options.streaming, "/block/" in one.id, one.expected[-1]["type"])
        for one in vectors
        if one.legal and one.version is not None and "/stream/" not in one.id and "/capture/" not in one.id
    }
    for case in CASES:
        name = type(case.message).__name__
        for version in case.versions:
            for in_stream, streaming in CONTEXTS[version]:
                kind = _protocols.VERSIONS[version].by_name[name]
                needs_block = any(field.when == "in_stream" for field in kind.fields)
                if in_stream and not needs_block and name not in ("Origin", "StreamStop"):
                    continue
                if name == "StreamStop" and not in_stream:
                    continue
                if streaming == "off" and name.startswith("Stream"):
                    continue
                place = (version, streaming, in_stream, name)
                assert place in found


def test_two_phase_messages_of_old_versions_have_vectors(vectors: list[Vector]) -> None:
    found = {
        (one.version, one.expected[-1]["type"]) for one in vectors if one.legal and one.options.two_phase
    }
    assert {
        (version, name)
        for version in RELEASED
        if version not in TWO_PHASE
        for name in ("BeginPrepare", "CommitPrepared")
    } <= found


@pytest.mark.parametrize(
    ("name", "tag"), [("new=null", "6e"), ("new=unchanged", "75"), ("usual", "74"), ("new=binary", "62")]
)
def test_every_form_of_a_cell_has_a_vector(vectors: list[Vector], name: str, tag: str) -> None:
    for version in RELEASED:
        (one,) = (v for v in vectors if v.id == f"v{version}/off/Insert/{name}")
        assert one.messages[-1].partition("74000000013")[2][1:3] == tag  # behind the first value


def test_faults_name_the_byte(vectors: list[Vector]) -> None:
    """Compare field and offset with the pieces of the legal message from which the fault was made."""
    legal = {one.id: one for one in vectors if one.legal}
    compared = 0
    for one in vectors:
        context, _, rest = one.id.partition("/bad/")
        name, _, fault = rest.rpartition("/")
        base = legal.get(f"{context}/{name}")
        if one.group not in ("illegal: truncated", "illegal: value") or base is None:
            continue
        assert one.fault is not None
        data = bytes.fromhex(base.messages[-1])
        since = _protocols.ALL_VERSIONS.by_tag[data[0]].since
        protocol = _protocols.VERSIONS[max(base.version or 0, since)]
        pieces = list(walk(protocol, data, "/block" in context, one.options.streaming))
        if fault.startswith("cut-"):
            cut = int(fault.removeprefix("cut-"))
            piece = next(piece for piece in pieces if piece.end > cut)
            path = piece.path if not re.fullmatch(r"(key|old)\.tag", piece.path) else one.fault.field
        else:
            path = fault.partition("=")[0]
            piece = next(piece for piece in pieces if piece.path == path)
        found = one.fault.offset, (one.fault.field or "").removesuffix(".tag")
        assert found == (piece.start, (path or "").removesuffix(".tag")), one.id
        compared += 1
    assert compared > 1000


def test_the_kit_is_the_same_in_each_run(tmp_path: Path) -> None:
    capture = CAPTURES / "pg18_p1.jsonl.gz"
    manifest = write_kit(tmp_path / "one", [capture])
    program = (
        f"from logicalrep.vectors import write_kit; write_kit({str(tmp_path / 'two')!r}, [{str(capture)!r}])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "LOGICALREP_PURE": "1", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=environment, check=True)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert files == sorted({"manifest.json", "schema.json"} | {one.path for one in manifest.files})
    for one in manifest.files:
        content = (tmp_path / "one" / one.path).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), content.count(b"\n")) == (one.sha256, one.vectors)
    stored = msgspec.json.decode((tmp_path / "one/manifest.json").read_bytes(), type=Manifest)
    assert stored == manifest
    read = list(read_kit(tmp_path / "one"))
    assert len(read) == manifest.vectors == manifest.legal + manifest.illegal == sum(manifest.groups.values())


@pytest.mark.parametrize("channel", ["data", "copydata"])
def test_an_error_in_a_capture_file_names_the_file(channel: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(encode_header(Header(RELEASED[-1], {})) + encode_record(channel, b"\xff"))
    with pytest.raises(RecordingError, match=r"bad\.jsonl: .* no message with the tag 0xff"):
        list(capture_vectors([path]))


def test_vectors_obey_the_schema(vectors: list[Vector]) -> None:
    for one in [*vectors[::20], *(one for one in vectors if one.tables is not None)]:
        assert obeys(msgspec.to_builtins(one), SCHEMA), one.id
        assert obeys(msgspec.to_builtins(answer(request(one))), {"$ref": "#/$defs/Answer"}), one.id
        assert obeys(msgspec.to_builtins(request(one)), {"$ref": "#/$defs/Request"}), one.id


def test_the_schema_refuses_other_objects(vectors: list[Vector]) -> None:
    vector = msgspec.to_builtins(vectors[0])
    begin = vectors[0].expected[0]
    assert begin["type"] == "Begin"
    for wrong in ({"legal": 1}, {"options": {"streaming": "no"}}, {"version": "1"}):
        assert not obeys(vector | wrong, SCHEMA)
    for wrong in ({"xid": -1}, {"xid": 1 << 32}, {"final_lsn": 1}, {"final_lsn": "x"}, {"type": "End"}):
        assert not obeys(vector | {"expected": [begin | wrong]}, SCHEMA)


SCHEMA = schema()
KINDS: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def obeys(value: Any, rule: dict[str, Any]) -> bool:
    """Return whether a value obeys a JSON Schema with the keywords that `schema` uses."""
    if "$ref" in rule and not obeys(value, SCHEMA["$defs"][rule["$ref"].rpartition("/")[2]]):
        return False
    if "anyOf" in rule and not any(obeys(value, one) for one in rule["anyOf"]):
        return False
    if ("enum" in rule and value not in rule["enum"]) or value != rule.get("const", value):
        return False
    if "type" in rule and type(value) is not KINDS.get(rule["type"], int):
        return False
    if "pattern" in rule and not re.search(rule["pattern"], value):
        return False
    if "minimum" in rule and not rule["minimum"] <= value <= rule["maximum"]:
        return False
    if isinstance(value, list):
        return all(obeys(one, rule.get("items", {})) for one in value)
    if isinstance(value, dict):
        properties, others = rule.get("properties", {}), rule.get("additionalProperties", True)
        inner = {True: {}, False: {"enum": []}}[others] if isinstance(others, bool) else others
        return set(rule.get("required", ())) <= value.keys() and all(
            obeys(one, properties.get(key, inner)) for key, one in value.items()
        )
    return True


def test_a_folder_without_a_kit(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="not a kit of test vectors"):
        list(read_kit(tmp_path))


def test_a_kit_of_another_format(tmp_path: Path) -> None:
    digits = {"vectors": 0, "legal": 0, "illegal": 0, "seed": 0}
    manifest = {"format": 2, "logicalrep": "9.0.0", "spec": "", "groups": {}, "files": []} | digits
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(
        RecordingError, match="expected format 1 of the kit, found format 2: write the kit again"
    ):
        list(read_kit(tmp_path))


@pytest.fixture(scope="module")
def answers(vectors: list[Vector]) -> list[bytes]:
    return [msgspec.json.encode(answer(request(one))) for one in vectors]


DROPPED: dict[str, str] = {
    "the LSN of Stream Abort": "StreamAbort.abort_lsn",
    "the time of Stream Abort": "StreamAbort.abort_time",
    "the time of Commit": "Commit.commit_time",
    "the global identifier": "Prepare.gid",
    "the flags of columns": "Relation.columns.flags",
    "the type modifier": "Relation.columns.type_modifier",
    "the replica identity": "Relation.replica_identity",
    "the options of Truncate": "Truncate.options",
    "the old row": "Update.old",
    "the xid inside a stream block": "Insert.xid",
    "the flags of logical messages": "LogicalMessage.flags",
}
"""Fields that decoders drop: message, field, and for a list the field of its items."""


def drop(message: Json, path: str) -> None:
    kind, *fields, last = path.split(".")
    if message["type"] == kind:
        for one in message[fields[0]] if fields else (message,):
            one.pop(last, None)


@pytest.mark.parametrize("path", DROPPED.values(), ids=DROPPED)
def test_a_decoder_that_drops_a_field_fails_at_the_level_of_fields(
    vectors: list[Vector], answers: list[bytes], path: str
) -> None:
    failed = Counter[str]()
    for vector, encoded in zip(vectors, answers, strict=True):
        changed = msgspec.json.decode(encoded, type=Answer)
        for message in changed.messages or ():
            drop(message, path)
        for level in get_args(Level):
            failed[level] += judge(vector, changed, lenient=False, level=level).outcome == "failed"
    assert failed["given"] == 0
    assert 0 < failed["fields"] <= failed["exact"]
