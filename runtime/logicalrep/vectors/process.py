"""Run a decoder as a process, which reads requests from standard input and writes answers to its output."""

from __future__ import annotations

import os
import resource
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Final, Self

import msgspec

from logicalrep.errors import LogicalrepError
from logicalrep.vectors.model import Answer, Request

_CHUNK: Final = 1 << 16
_MAX_ANSWER: Final = 16 << 20
"""Maximum length of an answer, in bytes. The limit stops a decoder that writes an endless answer."""

_START_SECONDS: Final = 30.0
"""Time that a process has for its first answer in addition to the time for each answer, in seconds."""

_MAX_FAILURES: Final = 3
"""Number of failures after which a decoder that has never given a valid answer is not started again."""


class DecoderFailed(Exception):
    """Raised if the process of a decoder gives no valid answer to a request. The text contains the reason."""


class DecoderProcess:
    """Runs a decoder as a process, which is started again after a failure. Use as a context manager.

    Args:
        command: The program and its arguments.
        seconds: Time that an answer may take, in seconds.
        memory: Limit of the memory that the process allocates, in bytes (RLIMIT_DATA, on Linux); None for no
            limit.
        quiet: Whether to discard what the process writes to standard error.

    Raises:
        ValueError: The platform cannot limit the memory of a process.
    """

    def __init__(
        self, command: Sequence[str], *, seconds: float, memory: int | None = None, quiet: bool = True
    ) -> None:
        if memory is not None and not hasattr(resource, "prlimit"):
            raise ValueError("memory: the memory of a decoder can be limited only on Linux; pass None")
        self._command = list(command)
        self._seconds = seconds
        self._memory = memory
        self._stderr = subprocess.DEVNULL if quiet else None
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._warm_up: bytes | None = None
        """First request that was answered. A restarted process gets this request first, with extra time."""
        self._failures = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def ask(self, request: Request) -> Answer:
        """Send a request and return its answer.

        Raises:
            DecoderFailed: The process ended, took too long, or wrote no valid answer. The next request starts
                the process again.
            LogicalrepError: The decoder has failed `_MAX_FAILURES` times and has never given a valid answer.
            OSError: The program cannot be started.
        """
        try:
            data = msgspec.json.encode(request) + b"\n"
            answer = msgspec.json.decode(self._exchange(data), type=Answer)
            if answer.id != request.id:
                raise DecoderFailed(f"expected an answer with the id {request.id!r}, found {answer.id!r}")
        except msgspec.MsgspecError as error:
            raise self._failed(f"the output is not an answer: {error}") from None
        except DecoderFailed as error:
            raise self._failed(str(error)) from None
        if self._warm_up is None:
            self._warm_up = data
        return answer

    def _failed(self, text: str) -> Exception:
        self._end()
        self._failures += 1
        if self._warm_up is None and self._failures >= _MAX_FAILURES:
            return LogicalrepError(f"the decoder {shlex.join(self._command)} gives no valid answers: {text}")
        return DecoderFailed(text)

    def _exchange(self, data: bytes) -> bytes:
        if self._process is not None:
            return self._exchange_with(self._process, data, self._seconds)
        self._process = process = self._start()
        if self._warm_up is None:
            return self._exchange_with(process, data, self._seconds + _START_SECONDS)
        self._exchange_with(process, self._warm_up, self._seconds + _START_SECONDS)
        return self._exchange_with(process, data, self._seconds)

    def _exchange_with(self, process: subprocess.Popen[bytes], data: bytes, seconds: float) -> bytes:
        """Write a request to a process and return the line with its answer.

        Raises:
            DecoderFailed: The process ended, took longer than `seconds`, or wrote an answer that is too long.
        """
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(stdin, selectors.EVENT_WRITE)
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise DecoderFailed(f"no answer within {seconds:g} s")
                for key, _ in ready:
                    if key.fileobj is stdout:
                        self._receive(process, stdout.fileno())
                    elif data:
                        data = self._send(process, stdin.fileno(), data)
                    else:
                        selector.unregister(stdin)
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _receive(self, process: subprocess.Popen[bytes], source: int) -> None:
        chunk = os.read(source, _CHUNK)
        if not chunk:
            raise self._ended(process)
        self._read += chunk
        if len(self._read) > _MAX_ANSWER:
            raise DecoderFailed(f"the answer is longer than {_MAX_ANSWER} bytes")

    def _send(self, process: subprocess.Popen[bytes], target: int, data: bytes) -> bytes:
        """Write as much of `data` as the pipe `target` (file descriptor) accepts; return the rest."""
        try:
            return data[os.write(target, data) :]
        except BrokenPipeError:
            raise self._ended(process) from None

    def _ended(self, process: subprocess.Popen[bytes]) -> DecoderFailed:
        try:
            code = process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            return DecoderFailed("the process closed its standard input or output")
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return DecoderFailed(f"the process ended with {how}")

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            process_group=0,  # so that child processes of the program are killed with it
        )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        if self._memory is not None:
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (self._memory, self._memory))
        return process

    def _end(self) -> None:
        if self._process is not None:
            with self._process as process:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            self._process, self._read = None, b""
