"""No omission or swap of a role, meaning, condition, gate or tag in a released version is accepted."""

# ruff: noqa: E501  (each mistake is one line of the table)

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from codegen.load import load
from codegen.lock import check, read_lock
from codegen.yamlfile import SpecError
from tests.codegen.spec_copy import SpecCopy


class Slip(NamedTuple):
    """Replacements in the blocks of a spec file: by the key of a block, texts and what replaces them."""

    name: str
    replaced: dict[str, tuple[tuple[str, str], ...]]
    file: str = "pgoutput.yaml"


def swap(key: str, one: str, first: str, other: str, second: str) -> Slip:
    """Give two blocks each other's value of a key."""
    old, new = f"{key}: {first}", f"{key}: {second}"
    return Slip(f"{key}: {first} <-> {second}", {one: ((old, new),), other: ((new, old),)})


TUPLES = (("means: key", "means: @"), ("means: old", "means: key"), ("means: @", "means: old"))
TIMES = (
    ("means: prepare_time", "means: @"),
    ("means: time", "means: prepare_time"),
    ("means: @", "means: time"),
)
XIDS = (("means: xid", "means: @"), ("means: subxid", "means: xid"), ("means: @", "means: subxid"))
LSNS = (("means: lsn", "means: @"), ("means: end_lsn", "means: lsn"), ("means: @", "means: end_lsn"))

SLIPS = [
    swap("role", "Prepare", "prepare", "StreamPrepare", "prepare_streamed"),
    swap("role", "Relation", "relation", "Type", "type"),
    swap("role", "CommitPrepared", "commit_prepared", "RollbackPrepared", "rollback_prepared"),
    swap("role", "Insert", "insert", "Update", "update"),
    swap("role", "Update", "update", "Delete", "delete"),
    swap("role", "Commit", "commit", "StreamCommit", "commit_streamed"),
    swap("role", "StreamStart", "open_block", "StreamStop", "close_block"),
    swap("role", "StreamCommit", "commit_streamed", "StreamAbort", "abort_streamed"),
    Slip("role: insert -> payload", {"Insert": (("role: insert", "role: payload"),)}),
    Slip("role: origin -> payload", {"Origin": (("role: origin", "role: payload"),)}),
    Slip("no role", {"Truncate": (("    role: truncate\n", ""),)}),
    Slip("means: old <-> key", {"Update": TUPLES, "Delete": TUPLES}),
    Slip("means: old <-> key, of Delete", {"Delete": TUPLES}),
    Slip("means: time <-> prepare_time", {"RollbackPrepared": TIMES}),
    Slip("means: xid <-> subxid", {"StreamAbort": XIDS}),
    *(Slip(f"means: lsn <-> end_lsn, of {one}", {one: LSNS}) for one in ("Commit", "StreamCommit", "Prepare", "CommitPrepared")),
    Slip("means: subxid -> none", {"Insert": (("means: subxid", "means: none, because: X."),)}),
    Slip("no means: subxid", {"Update": (("means: subxid, ", ""),)}),
    Slip("means: xid -> subxid", {"LogicalMessage": (("means: xid", "means: subxid"),)}),
    Slip("means: xid -> none", {"LogicalMessage": (("means: xid", "means: none\n        because: X."),)}),
    Slip("no means: transactional", {"LogicalMessage": (("means: transactional, ", ""),)}),
    Slip("means: lsn -> none, of Origin", {"Origin": (("means: lsn", "means: none, because: X."),)}),
    Slip("means: relation -> none", {"Delete": (("means: relation", "means: none, because: X."),)}),
    Slip("means: key -> none", {"Delete": (("means: key", "means: none\n            because: X."),)}),
    Slip("means: old -> none", {"Update": (("means: old", "means: none, because: X."),)}),
    Slip("means: prepare_end_lsn -> lsn", {"RollbackPrepared": (("means: prepare_end_lsn", "means: lsn"),)}),
    Slip("no when: in_stream", {"Relation": ((", when: in_stream", ""),)}),
    Slip("no when: parallel", {"StreamAbort": ((", when: {streaming: parallel}", ""),)}),
    Slip("gate of a field: 2+ -> 3+", {"Insert": (("versions: 2+", "versions: 3+"),)}),
    Slip("gate of a message: 3+ -> 2+", {"BeginPrepare": (("versions: 3+", "versions: 2+"),)}),
    Slip("gate of streaming: parallel: 4+ -> 3+", {"streaming": (("{versions: 4+", "{versions: 3+"),)}),
    Slip("gate of streaming: on: server", {"streaming": (("2+, server: 14+", "2+, server: 15+"),)}),
    Slip("server of Truncate", {"Truncate": (("server: 11+", "server: 12+"),)}),
    Slip("no server", {"LogicalMessage": (("    server: 14+\n", ""),)}),
    Slip("no any_version", {"two_phase": (("    any_version: true\n", ""),)}),
    Slip("no option: two_phase", {"Prepare": (("    option: two_phase\n", ""),)}),
    Slip("option: messages -> streaming", {"LogicalMessage": (("option: messages", "option: streaming"),)}),
    Slip("sender", {"PrimaryKeepalive": (("sender: server", "sender: client"),)}, "replication.yaml"),
    Slip("no sender", {"StandbyStatusUpdate": (("    sender: client\n", ""),)}, "replication.yaml"),
    Slip("tag <-> tag", {"Insert": (("tag: I\n", "tag: U\n"),), "Update": (("tag: U\n", "tag: I\n"),)}),
    Slip("tag of K <-> O", {"Delete": (('tag: "K"', 'tag: "@"'), ('tag: "O"', 'tag: "K"'), ('tag: "@"', 'tag: "O"'))}),
    Slip("context left by another message", {"in_stream": (("leave: StreamStop", "leave: StreamCommit"),)}),
    Slip("gate of the context: 2+ -> 3+", {"in_stream": (("versions: 2+", "versions: 3+"),)}),
    Slip("option of a cell", {"TupleData": (("        option: binary\n", ""),)}),
    Slip("server of a cell", {"TupleData": (("        server: 14+\n", ""),)}),
]  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.name)
def test_a_slip_in_a_released_version_is_refused(spec: SpecCopy, slip: Slip) -> None:
    for key, replaced in slip.replaced.items():
        text = spec.read(slip.file)
        block = re.search(rf"^  {key}:\n(?:(?:    .*)?\n)+", text, re.MULTILINE)
        assert block is not None
        changed = block[0]
        for old, new in replaced:
            assert old in changed
            changed = changed.replace(old, new, 1)
        spec.write(text[: block.start()] + changed + text[block.end() :], slip.file)
    with pytest.raises(SpecError) as error:
        check(read_lock(spec.folder), load(spec.folder))
    assert re.fullmatch(rf"{re.escape(str(spec.folder / slip.file))}:\d+: .+", str(error.value))
