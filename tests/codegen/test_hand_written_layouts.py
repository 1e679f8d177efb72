"""Only spec/ and generated/ say which bytes messages consist of.

Tags, byte offsets and `struct` formats of messages in the runtime are read from the layouts, through
`logicalrep._roles`, `_offsets`, `_fixed` and `_layout`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from logicalrep import _protocols
from logicalrep._layout import Field, sides
from tests.codegen.spec_copy import ROOT
from tests.versions import WRITTEN

RUNTIME = ROOT / "runtime/logicalrep"

ALLOWED = {
    "_walk.py": "reads the fields that the layouts list",
    "wire.py": "bytes whose length precedes them, in the format that the codec gives",
    # PostgreSQL's frontend/backend protocol, which is another protocol with its own tags.
    "standin/authentication.py": "SASL messages",
    "standin/backend.py": "transaction status in ReadyForQuery",
    "standin/connection.py": "messages of the frontend/backend protocol",
    "standin/frontend.py": "messages of the frontend/backend protocol",
    "standin/protocol.py": "messages of the frontend/backend protocol",
    "standin/replication/executor.py": "CopyDone",
    "standin/replication/walsender.py": "CopyData, CopyDone and Terminate",
    "standin/sql/extended_query.py": "messages of the frontend/backend protocol",
    "recorder/client/errors.py": "fields of ErrorResponse and NoticeResponse",
    "columns/envelopes.py": "CopyData",
    "recorder/client/copy_data.py": "messages of COPY, and NoticeResponse",
    # Formats of values and of COPY, which messages contain as opaque bytes.
    "recorder/snapshots/copy_format.py": "COPY's text and binary format",
    "standin/values.py": "text format of values",
    "synth/output_plugin.py": "binary format of arrays",
    "synth/text_format.py": "rounds times in binary format, and writes intervals",
    "values": "text and binary format of values",
    # Files that no message is part of.
    "apply/rows/key_index.py": "an index of keys",
    "targets/delta/vectors.py": "deletion vectors of Delta",
    # The offset comes from logicalrep._offsets.
    "recorder/session/upgrade.py": "WAL records",
    "recording/packs.py": "records of ZIP files",
    "vectors/illegal.py": "damages values at the places that logicalrep._walk returns",
    "standin/replication/source_reader.py": "reads 8 bytes at the offset of the end LSN; CopyData",
}
"""Files and folders of the runtime that may contain tags, offsets or formats, and what these are for."""


def _tags() -> set[str]:
    """Return the tags of messages, envelopes, tuples and cells."""
    tags: set[str] = set()
    for protocol in (_protocols.VERSIONS[WRITTEN], _protocols.ENVELOPE):
        for message in protocol.messages:
            fields: tuple[Field, ...] = tuple(sides(message.fields))
            cells = {cell.tag for field in fields for cell in field.cells}
            tags |= {message.tag, *cells, *(field.tag for field in fields if field.tag)}
    return tags


TAGS = _tags()
BYTES = {"data", "raw", "message", "payload", "content", "body"}
"""Names of variables that hold the bytes of a message."""
READERS = {"unpack", "unpack_from", "iter_unpack", "from_bytes"}


def _is_tags(text: str) -> bool:
    return bool(text) and set(text) <= TAGS and len(set(text)) == len(text)


def _hand_written(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line number, source) of code that has a tag, slices at an offset or reads integers."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=bytes(value)) if _is_tags(value.decode("latin-1")):
                yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Name(id="ord"), args=[ast.Constant(value=str(value))]) if value in TAGS:
                yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Name(id="Struct")):
                yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr=name)) if name in READERS:
                yield node.lineno, ast.unparse(node)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice() as part) if name in BYTES:
                bounds = [ast.unparse(one) for one in (part.lower, part.upper) if one is not None]
                if any(one.isdigit() and int(one) > 0 for one in bounds) and bounds != ["1"]:
                    yield node.lineno, ast.unparse(node)


def _found(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [f"{path.relative_to(RUNTIME)}:{line}: {text}" for line, text in _hand_written(tree)]


def _files(name: str) -> list[Path]:
    path = RUNTIME / name
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def test_the_runtime_contains_no_tags_and_offsets_of_messages() -> None:
    allowed = {path for name in ALLOWED for path in _files(name)}
    found = [one for path in _files("") if path not in allowed for one in _found(path)]
    assert found == [], "use logicalrep._roles, _offsets or _fixed, or say in ALLOWED why not"


@pytest.mark.parametrize("name", ALLOWED)
def test_each_exception_is_needed(name: str) -> None:
    assert any(map(_found, _files(name))), f"{name} needs no exception any more: remove it"


@pytest.mark.parametrize(
    "code",
    [
        'if data[:1] == b"I": pass',
        'TAGS = frozenset(b"IUDT")',
        'OFFSETS = dict.fromkeys(b"CKPpr", 10)',
        '_NULL = ord("n")',
        '_XLOG_DATA = Struct(">cIcQQq")',
        '_UINT32.unpack_from(data, 1)',
        'xid = int.from_bytes(data[1:5])',
        "tail = data[9:]",
        "head = data[:9]",
    ],
)  # fmt: skip
def test_tags_and_offsets_are_found(code: str) -> None:
    assert list(_hand_written(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ['if data[0] in tags("insert"): pass', 'tag = data[:1]', 'x = b"content"', 'y = rows[1:5]']
)  # fmt: skip
def test_other_code_is_not_found(code: str) -> None:
    assert not list(_hand_written(ast.parse(code)))
