"""Run a decoder on vectors."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from logicalrep.vectors.judging import Level, Verdict, judge
from logicalrep.vectors.model import Request, Vector
from logicalrep.vectors.process import DecoderFailed, DecoderProcess


def run_decoder(
    command: Sequence[str],
    vectors: Iterable[Vector],
    *,
    seconds: float = 5.0,
    memory: int | None = None,
    lenient: bool = False,
    level: Level = "given",
    quiet: bool = True,
) -> Generator[Verdict, None, None]:
    """Yield the result of each vector. A decoder that hangs or ends fails the vector and is restarted.

    Args:
        command: The decoder's program and its arguments.
        vectors: The vectors.
        seconds: Time that an answer may take, in seconds.
        memory: Limit of the memory that the program allocates, in bytes (on Linux); None for no limit.
        lenient: Whether a vector counts as skipped if the decoder accepts its illegal message.
        level: Which parts of an answer are compared: the keys that the answer contains (`given`), these keys
            and all fields of each message (`fields`), or all keys (`exact`).
        quiet: Whether to discard what the program writes to standard error.

    Raises:
        LogicalrepError: The program fails from the start and has never given a valid answer.
        OSError: The program cannot be started.
    """
    with DecoderProcess(command, seconds=seconds, memory=memory, quiet=quiet) as process:
        for vector in vectors:
            request = Request(
                id=vector.id, version=vector.version, options=vector.options, messages=vector.messages
            )
            try:
                answer = process.ask(request)
            except DecoderFailed as error:
                yield Verdict(vector.id, vector.group, "failed", str(error))
            else:
                yield judge(vector, answer, lenient=lenient, level=level)
