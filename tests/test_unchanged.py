"""The marker UNCHANGED differs from every value of a cell, also after encoding and copying."""

from __future__ import annotations

import copy
import json
import pickle

import msgspec

from logicalrep.jsonlines import from_json, to_json
from logicalrep.messages import Insert
from logicalrep.wire import UNCHANGED

MARKER = Insert(relation_oid=1, new=(UNCHANGED, None))
TEXT = Insert(relation_oid=1, new=("unchanged", None))


def test_msgspec_encodes_the_marker_and_the_text_differently() -> None:
    assert msgspec.json.decode(msgspec.json.encode(MARKER))["new"] == [{"unchanged": True}, None]
    assert msgspec.json.decode(msgspec.json.encode(TEXT))["new"] == ["unchanged", None]
    assert msgspec.msgpack.encode(MARKER) != msgspec.msgpack.encode(TEXT)
    assert msgspec.to_builtins(MARKER) != msgspec.to_builtins(TEXT)


def test_msgspec_encodes_the_marker_as_jsonlines_does() -> None:
    assert msgspec.json.decode(msgspec.json.encode(MARKER))["new"] == to_json(MARKER)["new"]
    for message in (MARKER, TEXT):
        assert from_json(json.loads(json.dumps(to_json(message)))) == message


def test_copies_are_the_same_object() -> None:
    assert copy.deepcopy(MARKER).new[0] is UNCHANGED
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(MARKER, protocol)).new[0] is UNCHANGED
    assert {UNCHANGED: 1}[UNCHANGED] == 1
    assert repr(UNCHANGED) == "UNCHANGED"
