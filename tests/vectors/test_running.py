"""Decoders that are right pass, and each way to fail is one failed vector, after which the run goes on."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from logicalrep import LogicalrepError
from logicalrep.vectors import Request, Vector, Verdict, run_decoder
from logicalrep.vectors.model import Options
from logicalrep.vectors.process import DecoderFailed, DecoderProcess
from tests.versions import OLDEST, RELEASED

ROOT = Path(__file__).parent.parent.parent
SECONDS = 60.0
"""Time limit of vectors in tests that no decoder exceeds, in seconds."""


def command(name: str) -> list[str]:
    return [sys.executable, "-m", "tests.vectors.decoders", name]


@pytest.fixture
def few(vectors: list[Vector], monkeypatch: pytest.MonkeyPatch) -> list[Vector]:
    """Six vectors: the third is an Update, and the last two are illegal."""
    monkeypatch.chdir(ROOT)
    by_id = {one.id: one for one in vectors}
    names = ("Begin/usual", "Insert/usual", "Update/usual", "Begin/xid=greatest")
    return [
        *(by_id[f"v{OLDEST}/off/{name}"] for name in names),
        by_id[f"v{OLDEST}/off/bad/Commit/usual/cut-9"],
        by_id[f"v{OLDEST}/off/bad/Insert/usual/one-more-byte"],
    ]


def outcomes(verdicts: list[Verdict]) -> list[str]:
    return [one.outcome for one in verdicts]


@pytest.mark.parametrize("name", ["right", "silent", "tags", "unsure"])
def test_answers_with_less_detail_pass(few: list[Vector], name: str) -> None:
    assert outcomes(list(run_decoder(command(name), few))) == ["passed"] * 6


def test_answers_with_less_detail_fail_in_exact_mode(few: list[Vector]) -> None:
    assert outcomes(list(run_decoder(command("right"), few, level="exact"))) == ["passed"] * 6
    for name in ("silent", "tags"):
        verdicts = list(run_decoder(command(name), few, level="exact"))
        assert outcomes(verdicts) == ["failed"] * 6


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ends", "the process ended with exit code 7"),
        ("aborts", "the process ended with signal 6"),
        ("babbles", "the output is not an answer: Expected `object`, got `str`"),
        ("misnames", "expected an answer with the id {id!r}, found 'other'"),
        ("floods", "the answer is longer than 16777216 bytes"),
    ],
)
def test_a_decoder_that_fails_is_started_again(few: list[Vector], name: str, reason: str) -> None:
    verdicts = list(run_decoder(command(name), few, seconds=SECONDS))
    assert outcomes(verdicts) == ["passed", "passed", "failed", "passed", "passed", "passed"]
    assert verdicts[2].reason == reason.format(id=few[2].id)


@pytest.mark.parametrize("name", ["hangs", "drips"])
def test_a_decoder_without_an_answer_fails(few: list[Vector], name: str) -> None:
    verdicts = list(run_decoder(command(name), few, seconds=1.5))
    assert outcomes(verdicts) == ["passed", "passed", "failed", "passed", "passed", "passed"]
    assert verdicts[2].reason == "no answer within 1.5 s"


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of memory needs Linux")
def test_a_decoder_that_needs_too_much_memory_fails(few: list[Vector]) -> None:
    assert outcomes(list(run_decoder(command("grows"), few, seconds=SECONDS))) == ["passed"] * 6
    verdicts = list(run_decoder(command("grows"), few, seconds=SECONDS, memory=200 << 20))
    assert outcomes(verdicts) == ["passed", "passed", "failed", "passed", "passed", "passed"]


def test_a_decoder_that_never_answers_is_given_up(few: list[Vector]) -> None:
    with pytest.raises(
        LogicalrepError, match="dumb gives no valid answers: the process ended with exit code 3"
    ):
        list(run_decoder(command("dumb"), few, seconds=SECONDS))


def test_each_request_after_the_third_failure_is_refused() -> None:
    request = Request(id="x", version=OLDEST, options=Options(), messages=[])
    with DecoderProcess(["false"], seconds=SECONDS) as process:
        for expected in (DecoderFailed, DecoderFailed, LogicalrepError, LogicalrepError):
            with pytest.raises(expected, match="exit code 1"):
                process.ask(request)


def test_a_program_that_does_not_exist(few: list[Vector]) -> None:
    with pytest.raises(FileNotFoundError):
        list(run_decoder(["no-such-program"], few))


def test_wrong_values_fail(few: list[Vector]) -> None:
    verdicts = list(run_decoder(command("wrong_xid"), few))
    assert outcomes(verdicts) == ["passed", "passed", "passed", "failed", "passed", "passed"]
    assert verdicts[3].reason == "messages[0].xid: expected 4294967295, found -1"


def test_wrong_offsets_fail(few: list[Vector]) -> None:
    verdicts = list(run_decoder(command("off_by_one"), few))
    assert outcomes(verdicts) == ["passed", "passed", "passed", "passed", "failed", "failed"]
    assert verdicts[4].reason == "error.offset: expected 2, found 3"


def test_accepted_illegal_messages_fail_unless_lenient(few: list[Vector]) -> None:
    verdicts = list(run_decoder(command("credulous"), few))
    assert outcomes(verdicts) == ["passed", "passed", "passed", "passed", "failed", "failed"]
    verdicts = list(run_decoder(command("credulous"), few, lenient=True))
    assert outcomes(verdicts) == ["passed", "passed", "passed", "passed", "skipped", "skipped"]


def test_tables_are_compared(vectors: list[Vector], few: list[Vector]) -> None:
    streams = [one for one in vectors if one.id == "v4/stream/changes/parallel"]
    (verdict,) = run_decoder(command("loses_a_row"), streams)
    assert verdict.reason.startswith("tables.public.Größen: ")


def test_unclaimed_vectors_are_skipped(vectors: list[Vector], few: list[Vector]) -> None:
    usual = [one for one in vectors if one.id.endswith("/off/Begin/usual")]
    found = Counter((one.outcome, one.reason) for one in run_decoder(command("oldest"), usual))
    expected = {("passed", ""): 1} | {("skipped", f"version {n}"): 1 for n in RELEASED[1:]}
    assert found == expected
