"""Two threads write and store segments: in order, at most so many at a time, and no more after an error."""

from __future__ import annotations

import select
from functools import partial
from threading import Event

import pytest

from pgoutput.recorder.writer_threads import WriterThreads

PATIENCE = 120


def test_segments_are_stored_in_order_while_others_are_written() -> None:
    done: list[str] = []
    release, waits = Event(), [Event() for _ in range(5)]

    def store(number: int) -> None:
        assert release.wait(PATIENCE)
        done.append(f"store {number}")

    def write(number: int) -> None:
        done.append(f"write {number}")
        waits[number].set()
        threads.submit_end(partial(store, number))

    with WriterThreads(lambda: None) as threads:
        for number in range(5):
            threads.submit(partial(write, number))
        assert waits[2].wait(PATIENCE), "the first is being stored, the second waits"
        assert not waits[3].wait(0.2)
        assert done == ["write 0", "write 1", "write 2"]
        assert not threads.is_idle
        release.set()
        threads.flush()
        assert [one for one in done if "store" in one] == [f"store {number}" for number in range(5)]


def test_the_first_error_ends_all_jobs() -> None:
    done: list[str] = []
    release = Event()

    def fail() -> None:
        assert release.wait(PATIENCE)
        raise OSError("the store")

    with WriterThreads(lambda: None) as threads:
        threads.submit(lambda: threads.submit_end(fail))
        threads.submit(lambda: threads.submit_end(lambda: done.append("stored")))
        release.set()
        assert select.select([threads], [], [], PATIENCE)[0]
        with pytest.raises(OSError, match="the store"):
            threads.flush()
        for method in (threads.collect, threads.check, partial(threads.submit, release.set)):
            with pytest.raises(OSError, match="the store"):
                method()
    assert done == []
