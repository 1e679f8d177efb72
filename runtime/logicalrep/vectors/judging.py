"""Compare the answers of a decoder with what vectors expect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from logicalrep.vectors.model import Answer, Json, Vector

Outcome = Literal["passed", "failed", "skipped"]

Level = Literal["given", "fields", "exact"]
"""Which parts of an answer are compared. `given`: only keys that the answer contains. `fields`: these keys
and all fields of the messages. `exact`: all keys."""

_COMPARED: Final = ("message", "field", "offset")
"""Keys of an answer's `error` that are compared with the vector's `fault`."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of comparing a decoder's answer with a vector."""

    id: str
    group: str
    outcome: Outcome
    reason: str = ""
    """Why the vector failed or was skipped."""


class Mismatch(Exception):
    """Raised if an answer differs from what its vector expects. The text contains the place and values."""


def judge(vector: Vector, answer: Answer, *, lenient: bool, level: Level) -> Verdict:
    """Compare an answer with what the vector expects, and return the `Verdict`.

    Args:
        vector: The vector.
        answer: The answer of the decoder.
        lenient: Whether a vector counts as skipped if the decoder has accepted its illegal message.
        level: Which parts of the answer are compared; see `Level`.
    """
    if answer.skip is not None:
        return Verdict(vector.id, vector.group, "skipped", answer.skip)
    if lenient and not vector.legal and answer.error is None:
        return Verdict(vector.id, vector.group, "skipped", "accepted")
    try:
        _compare_answer(vector, answer, level)
    except Mismatch as mismatch:
        return Verdict(vector.id, vector.group, "failed", str(mismatch))
    return Verdict(vector.id, vector.group, "passed")


def _compare_answer(vector: Vector, answer: Answer, level: Level) -> None:
    exact = level == "exact"
    if vector.fault is None:
        if answer.error is not None:
            raise Mismatch(
                f"the decoder refused a legal message: {answer.error.get('text', 'no reason given')}"
            )
        if answer.messages is None:
            raise Mismatch("the answer has none of the keys `messages`, `error` and `skip`")
    elif answer.error is None:
        raise Mismatch(f"the decoder accepted an illegal message: {vector.fault.text}")
    if answer.messages is not None or exact:
        _compare_lists("messages", vector.expected, answer.messages, level != "given")
    if vector.fault is not None and answer.error is not None:
        keys = _COMPARED if exact else [key for key in _COMPARED if key in answer.error]
        for key in keys:
            _require(f"error.{key}", getattr(vector.fault, key), answer.error.get(key))
    if vector.transactions is not None and (exact or answer.transactions is not None):
        expected: list[Json] = [msgspec.to_builtins(one) for one in vector.transactions]
        _compare_lists("transactions", expected, answer.transactions, exact)
    if vector.tables is not None and (exact or answer.tables is not None):
        found = answer.tables or {}
        for name in sorted(vector.tables.keys() | found.keys()):
            rows = [_in_order(one.get(name, [])) for one in (vector.tables, found)]
            _require(f"tables.{name}", *rows)


def _compare_lists(path: str, expected: list[Any], found: list[Any] | None, exact: bool) -> None:
    if found is None or len(expected) != len(found):
        have = "none" if found is None else str(len(found))
        raise Mismatch(f"{path}: expected {len(expected)} elements, found {have}")
    for i, (one, other) in enumerate(zip(expected, found, strict=True)):
        _compare(f"{path}[{i}]", one, other, exact)


def _compare(path: str, expected: Any, found: Any, exact: bool) -> None:
    """Raise Mismatch if a value of the answer (`found`) differs from the expected value.

    If `exact` is false, an object is compared only in the keys that the answer contains, and an empty object
    in the answer equals any value.
    """
    if found == {} and not exact:
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in expected.keys() | found.keys() if exact else found.keys():
            _compare(f"{path}.{key}", expected.get(key), found.get(key), exact)
    elif isinstance(expected, list) and isinstance(found, list):
        _compare_lists(path, expected, found, exact)
    else:
        _require(path, expected, found)


def _require(path: str, expected: Any, found: Any) -> None:
    if expected != found or isinstance(expected, bool) != isinstance(found, bool):
        raise Mismatch(f"{path}: expected {_shown(expected)}, found {_shown(found)}")


def _in_order(rows: Iterable[Json]) -> list[Json]:
    return sorted(rows, key=lambda row: msgspec.json.encode(row, order="deterministic"))


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:79] + "…"
