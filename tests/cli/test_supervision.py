"""`pgoutput run` starts, restarts and ends the processes of a configuration file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pgoutput.cli import supervision
from tests.cli.test_configuration import COMMAND, PATIENCE, write
from tests.conftest import Run
from tests.truth import CAPTURES

WAITING = """\
[record]
dsn = "host=/nowhere"
slot = "s"
publication = ["p"]
retry-for = 1000

[run.first]
command = "record"
out = "PLACE/first"

[run.second]
command = "record"
out = "PLACE/second"
dsn = "host=/elsewhere"
"""


def children(process: subprocess.Popen[str]) -> list[int]:
    lists = [one.read_text() for one in Path(f"/proc/{process.pid}/task").glob("*/children")]
    return [int(pid) for pids in lists for pid in pids.split()]


def start(
    config: Path, hosts: tuple[str, str] = ("nowhere", "elsewhere"), change: str = "pass", **environment: str
) -> subprocess.Popen[str]:
    """Start `pgoutput run`; wait until both of its processes have tried to connect.

    Args:
        config: Path of the configuration file.
        hosts: Hosts to which the processes connect.
        change: A statement that changes the module `supervision`.
        environment: Further environment variables.
    """
    code = f"from pgoutput.cli import main, supervision; {change}; main()"
    command = [sys.executable, "-c", code, "run", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
    assert process.stderr is not None
    seen: set[str] = set()
    while len(seen) < 2:
        name, text = process.stderr.readline().split(": ", 1)
        assert f'"/{dict(zip(("first", "second"), hosts, strict=True))[name]}/' in text, text
        seen.add(name)
    return process


def wait_until_ended(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_processes_end_with_their_supervisor(tmp_path: Path, number: signal.Signals) -> None:
    with start(write(tmp_path, WAITING)) as process:
        pids = children(process)
        assert len(pids) == 2
        process.send_signal(number)
        code = process.wait(PATIENCE)
    assert code == (0 if number != signal.SIGKILL else -number)
    wait_until_ended(pids)


def test_a_process_that_prints_nothing_ends_with_its_killed_supervisor(tmp_path: Path) -> None:
    config = write(tmp_path, f"[run.a]\ncommand = 'serve'\nfrom = '{CAPTURES / 'pg18_p1.jsonl.gz'}'\n")
    command = [*COMMAND, "run", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("a: ")  # the only lines: it serves
        (pid,) = children(process)
        process.kill()
    try:
        wait_until_ended([pid])
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_second_signal_kills_the_processes(tmp_path: Path) -> None:
    with start(write(tmp_path, WAITING)) as process:
        first, second = sorted(children(process))
        os.kill(first, signal.SIGSTOP)  # it does not react to SIGTERM
        process.terminate()
        wait_until_ended([second])  # the processes are ended at the same time
        assert is_alive(first)
        assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE) == 130
    assert not is_alive(first)


def test_a_process_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    with start(write(tmp_path, WAITING), change="supervision._PATIENCE = 0.5") as process:
        pids = children(process)
        os.kill(pids[0], signal.SIGSTOP)
        process.terminate()
        assert process.wait(PATIENCE) == 130
    assert not any(map(is_alive, pids))


def test_the_time_to_end_is_shorter_than_that_of_service_managers() -> None:
    deploy = Path(__file__).parent.parent.parent / "deploy"
    unit = (deploy / "systemd/pgoutput.service").read_text()
    pod = (deploy / "kubernetes/pgoutput.yaml").read_text()
    assert "\nTimeoutStopSec=120\n" in unit
    assert "\n      terminationGracePeriodSeconds: 120\n" in pod
    assert supervision._PATIENCE + 20 < 120


def test_the_supervisor_has_one_thread(tmp_path: Path) -> None:
    """Linux ends a child when the thread that has started it ends."""
    with start(write(tmp_path, WAITING)) as process:
        assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1
        process.terminate()


def test_options_of_a_process_replace_the_environment(tmp_path: Path) -> None:
    """An environment variable is the same for all processes: with it, both would record into one folder."""
    values = {"PGOUTPUT_RECORD_OUT": str(tmp_path / "third"), "PGOUTPUT_RECORD_DSN": "host=/environment"}
    with start(write(tmp_path, WAITING), ("environment", "elsewhere"), **values) as process:
        process.terminate()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["first", "pgoutput.toml", "second"]


def test_a_killed_process_is_restarted_and_the_others_go_on(tmp_path: Path) -> None:
    with start(write(tmp_path, WAITING)) as process:
        assert process.stderr is not None
        killed, other = sorted(children(process))
        os.kill(killed, signal.SIGKILL)
        while "ended with exit code -9, and is restarted in 1 s" not in process.stderr.readline():
            pass
        while len(children(process)) < 2:
            time.sleep(0.05)
        assert other in children(process)
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_an_error_that_stays_ends_only_its_process(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "mine.txt").write_text("not a recording")
    config = write(tmp_path, WAITING)
    with subprocess.Popen(
        [*COMMAND, "run", "--config", str(config)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "first: ended with exit code 2, and is not restarted" not in process.stderr.readline():
            pass
        assert len(children(process)) == 1
        process.terminate()
        assert process.wait(PATIENCE) == 2


def test_a_service_manager_is_told_the_state(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(address)
        heard.settimeout(PATIENCE)
        with start(write(tmp_path, WAITING), NOTIFY_SOCKET=address) as process:
            states = [heard.recv(999).decode().split("\n") for _ in range(2)]
            assert states == [["READY=1"], ["WATCHDOG=1", "STATUS=first runs; second runs"]]
            os.kill(sorted(children(process))[0], signal.SIGKILL)
            while "STATUS=first ended with exit code -9, restarts; second runs" not in states[-1]:
                states.append(heard.recv(999).decode().split("\n"))
            while "STATUS=first runs; second runs" not in states[-1]:
                states.append(heard.recv(999).decode().split("\n"))
            process.terminate()
            while states[-1] != ["STOPPING=1"]:
                assert states[-1][0] == "WATCHDOG=1"
                states.append(heard.recv(999).decode().split("\n"))


def test_a_file_without_processes_is_refused(run: Run, tmp_path: Path) -> None:
    config = write(tmp_path, "[spec]\nproto = 2\n")
    ended = run("run", "--config", config)
    assert (ended.code, ended.err) == (
        2,
        f"pgoutput: {config}: no table [run.NAME]: nothing is to run\n",
    )
