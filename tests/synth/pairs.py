"""Compare pairs of successive messages in the captures of real servers and in the streams of workloads.

`python -m tests.synth.pairs` prints, for each group of captures with equal options, the pairs that only the
server sends and the number of pairs that only the workload sends, by the C function that permits them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec

from logicalrep.messages import AnyMessage
from logicalrep.stream import StreamDecoder
from logicalrep.stream.check import check
from logicalrep.synth import StreamOptions
from logicalrep.synth.workload import PROFILES, Workload
from logicalrep.versions import SERVERS
from tests.codec import corpus
from tests.synth.workloads import check_options, sent

Pair: TypeAlias = tuple[str, str]
"""The kinds of two successive messages, such as ("Begin", "Update with key")."""

OPENERS: Final = {"Begin", "BeginPrepare", "StreamStart"}
CHANGES: Final = {
    *("Insert", "Update", "Update with key", "Update with old tuple"),
    *("Delete with key", "Delete with old tuple", "Truncate"),
}
RESOLVED: Final = {"CommitPrepared", "RollbackPrepared", "StreamCommit", "StreamPrepare", "StreamAbort"}
"""Names of the messages outside stream blocks that end a streamed or prepared transaction."""

PERMITTED: Final[dict[str, tuple[set[str], set[str]]]] = {
    "send_repl_origin": (OPENERS, {"Origin"}),
    "maybe_send_schema": (OPENERS | CHANGES | {"Origin", "LogicalMessage", "Relation"}, {"Type", "Relation"}),
    "send_relation_and_attrs": ({"Type"}, {"Type", "Relation"}),
    "pgoutput_change": ({"Relation"}, CHANGES),
    "ReorderBufferProcessTXN": (
        OPENERS | CHANGES | {"Origin", "LogicalMessage"},
        CHANGES | {"LogicalMessage", "Commit", "Prepare", "StreamStop"},
    ),
    "LogicalDecodingProcessRecord": (
        RESOLVED | {"Commit", "Prepare", "StreamStop", "LogicalMessage"},
        RESOLVED | OPENERS | {"LogicalMessage"},
    ),
}
"""By C function of the server: the kinds of messages after which it may send a message, and the kinds that it
may send then."""

TRANSACTIONS: Final = 400
"""Number of transactions of each workload."""
SEEDS: Final = range(8)
"""Seeds of the workloads of a group; workloads are made until they have all pairs of the captures."""


class Group(msgspec.Struct, frozen=True):
    """Captures of one server version with equal stream options, apart from the format of values."""

    server: int
    options: StreamOptions

    def __str__(self) -> str:
        options = " ".join(f"{name}={value}" for name, value in self.options.requested().items())
        two_phase = " two_phase slot" if self.options.two_phase else ""
        return f"PostgreSQL {self.server}, protocol {self.options.proto_version}: {options}{two_phase}"


@cache
def captured() -> dict[Group, set[Pair]]:
    """Return the pairs in the captures of each group."""
    found: defaultdict[Group, set[Pair]] = defaultdict(set)
    for name in corpus.CAPTURES:
        header, _, samples = corpus.read(name)
        options = StreamOptions(
            proto_version=header.proto_version,
            streaming=header.streaming,
            two_phase=header.slot_two_phase,
            messages="messages" in header.options,
            origin=header.options.get("origin", "any"),
        )
        major = re.match(r"\d+", header.server_version)
        assert major is not None, header
        if SERVERS[header.proto_version] <= int(major[0]):  # the capture is of a version of the spec
            found[Group(int(major[0]), options)] |= pairs(sample.message for sample in samples)
    return dict(found)


def made(group: Group) -> set[Pair]:
    """Return the pairs in workloads of the profile `everything` with the options of a group."""
    found: set[Pair] = set()
    for seed in SEEDS:
        found |= pairs(_messages(group, seed))
        if captured()[group] <= found:
            break
    return found


def _messages(group: Group, seed: int) -> list[AnyMessage]:
    """Return the messages of a workload, after checking that a server could send them."""
    options = group.options
    fields = msgspec.structs.asdict(PROFILES["everything"]) | msgspec.structs.asdict(options)
    workload = Workload(**fields, server=group.server, transactions=TRANSACTIONS, seed=seed)
    messages = sent(workload)
    assert next(check(messages, check_options(workload)), None) is None
    decoder = StreamDecoder(options.proto_version, streaming=options.streaming, two_phase=options.two_phase)
    return [decoder.decode(message.data) for message in messages]


def permitting(pair: Pair) -> list[str]:
    """Return the server's C functions that permit a pair."""
    return [name for name, (firsts, seconds) in PERMITTED.items() if pair[0] in firsts and pair[1] in seconds]


def pairs(messages: Iterable[Any]) -> set[Pair]:
    """Return the pairs of kinds of successive messages."""
    return set(pairwise(map(_kind, messages)))


def _kind(message: Any) -> str:
    """Return the name of a message's class, with the old tuple of an Update or Delete."""
    name = type(message).__name__
    if getattr(message, "old", None) is not None:
        return f"{name} with old tuple"
    return f"{name} with key" if getattr(message, "key", None) is not None else name


def main() -> None:
    for group, real in captured().items():
        ours = made(group)
        print(f"{group}: {len(real)} pairs captured, {len(ours)} made")
        print(f"  only the server: {', '.join(' + '.join(pair) for pair in sorted(real - ours)) or 'none'}")
        only = Counter(" or ".join(permitting(pair)) or f"NOT PERMITTED {pair}" for pair in ours - real)
        print(
            f"  only the workload: {', '.join(f'{count} by {name}' for name, count in sorted(only.items()))}"
        )


if __name__ == "__main__":
    main()
