"""Options come from the command line, else from the environment, else from a configuration file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Final, Protocol

import pytest

from logicalrep.recording import record_capture_file
from tests.conftest import Run
from tests.truth import CAPTURES
from tests.versions import OLDEST, RELEASED

COMMAND: Final = (sys.executable, "-m", "logicalrep.cli")
PATIENCE: Final = 60
KEYS: Final = "[record]: dsn: expected a reference with one of the keys env, file, "
"""The error of a reference that has none of the keys, or no text."""


class Command(Protocol):
    def __call__(self, *arguments: str | Path, **environment: str) -> SimpleNamespace: ...


@pytest.fixture
def command(run: Run, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs `logicalrep` in this process, with further environment variables."""

    def command(*arguments: str | Path, **environment: str) -> SimpleNamespace:
        with monkeypatch.context() as context:
            for name, value in {"COLUMNS": "300", **environment}.items():
                context.setenv(name, value)
            return run(*arguments)

    return command


def write(folder: Path, text: str) -> Path:
    path = folder / "logicalrep.toml"
    path.write_text(text.replace("PLACE", str(folder)))
    return path


def test_the_command_line_replaces_the_environment_and_both_replace_the_file(
    command: Command, tmp_path: Path
) -> None:
    config = write(tmp_path, "[spec]\nproto = 2\n")
    versions = []
    calls: list[tuple[list[str | Path], dict[str, str]]] = [
        ([], {}),
        (["--config", config], {}),
        ([], {"LOGICALREP_CONFIG": str(config)}),
        (["--config", config], {"LOGICALREP_SPEC_PROTO": "3"}),
        (["--config", config, "--proto", str(OLDEST)], {"LOGICALREP_SPEC_PROTO": "3"}),
    ]
    for arguments, environment in calls:
        printed = command("spec", *arguments, **environment)
        assert printed.code == 0, printed.err
        versions.append(int(re.findall(r"Protocol version (\d)", printed.out)[0]))
    assert versions == [RELEASED[-1], 2, 2, 3, OLDEST]


SECRET = "host=/nowhere user=postgres password=Ahem77"


@pytest.mark.parametrize("source", ["env", "file", "command"])
def test_a_secret_is_read_by_reference_and_not_printed(command: Command, tmp_path: Path, source: str) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    name = {"env": "THE_DSN", "file": "PLACE/secret", "command": "cat PLACE/secret"}[source]
    text = f"""\
[record]
dsn = {{ {source} = "{name}" }}
slot = "s"
publication = ["p", "q"]
recording = "PLACE/recording"
retry-for = 0
"""
    config = write(tmp_path, text)
    ended = subprocess.run(
        [*COMMAND, "record", "--config", config],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"THE_DSN": SECRET},
        timeout=PATIENCE,
    )
    assert ended.returncode == 3
    assert 'socket "/nowhere/' in ended.stderr
    assert "Ahem77" not in ended.stderr + ended.stdout
    checked = command("config", "check", config, THE_DSN=SECRET)
    assert (checked.code, checked.out) == (0, f"{config}: the options of 1 command\n")


@pytest.mark.parametrize("name", ["record", "sync", "status", "verify", "install-ddl-events"])
@pytest.mark.parametrize("dsn", ["{ env = 'THE_DSN' }", "{ env = 'MISSING' }", f"'{SECRET}'"])
def test_help_and_usage_errors_do_not_print_the_dsn(
    command: Command, tmp_path: Path, name: str, dsn: str
) -> None:
    """Help pages show values of configuration files as defaults, but do not read references."""
    config = write(tmp_path, f"[{name}]\ndsn = {dsn}\n")
    helped = command(name, "--config", config, "--help", THE_DSN=SECRET)
    assert (helped.code, helped.err) == (0, "")
    wrong = command(name, "--config", config, "--nonsense", THE_DSN=SECRET)
    assert wrong.code == 2
    for printed in (helped.out, wrong.out, wrong.err):
        assert "Ahem77" not in printed


@pytest.mark.parametrize(
    "text",
    [
        f"dsn = '{SECRET}'",
        f"[record]\ndsn = ['{SECRET}']",
        f"[record]\ndsn = {{ password = '{SECRET}' }}",
        f"[record]\ndns = '{SECRET}'",
        f"[record]\ndsn = '{SECRET}",
    ],
)
def test_errors_do_not_quote_misplaced_texts(command: Command, tmp_path: Path, text: str) -> None:
    ended = command("config", "check", write(tmp_path, text))
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "Ahem77" not in ended.err + ended.out


@pytest.mark.parametrize("name", ["record", "status", "install-ddl-events"])
def test_a_dsn_that_cannot_be_read_is_not_printed(command: Command, tmp_path: Path, name: str) -> None:
    """The text behind a space in a password is no keyword with a value."""
    record_capture_file(CAPTURES / "pg18_p1.jsonl.gz", tmp_path / "recording")
    options = {
        "record": f"slot = 's'\npublication = ['p']\nrecording = '{tmp_path / 'new'}'\n",
        "status": f"recording = '{tmp_path / 'recording'}'\n",
    }
    config = write(tmp_path, f"[{name}]\ndsn = '{SECRET} Ahem77'\n{options.get(name, '')}")
    ended = command(name, "--config", config)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("logicalrep: the DSN cannot be read: ")
    assert ended.err.count("\n") == 1
    assert "Ahem77" not in ended.err


def test_a_command_that_is_started_has_no_dsn_in_its_arguments(tmp_path: Path) -> None:
    """Every user of a machine can see the arguments of all processes."""
    text = f"[sync]\ndsn = '{SECRET}'\npublication = ['p']\ntarget = 'PLACE/lake'\nlog = 'json'\n"
    line = [*COMMAND, "sync", "--config", str(write(tmp_path, text))]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert 'socket \\"/nowhere/' in process.stdout.readline()  # the recorder has the DSN
        (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        assert b"record" in (arguments := Path(f"/proc/{child}/cmdline").read_bytes())
        assert b"Ahem77" not in arguments
        process.terminate()
        assert "Ahem77" not in process.stdout.read()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "[record",
            "the file is not valid TOML: Expected ']' at the end of a table declaration (at end of document)",
        ),
        ("[recrod]", "[recrod]: recrod is not a command: a file can configure decode, inspect, "),
        ("record = 1", "record must be a TOML table, such as [record]"),
        ("[record]\nslto = 's'", "[record]: record has no option slto: its options are slot, publication, "),
        ("[record]\nconfig = 's'", "[record]: record has no option config: "),
        ("[record]\nslot = 5", "[record]: slot: "),
        ("[record]\nslot = ['s']", "[record]: slot: "),
        ("[record]\npublication = 'p'", "[record]: publication: "),
        ("[record]\nsnapshot = 'perhaps'", "[record]: snapshot: "),
        ("[record]\nworkers = 'many'", "[record]: workers: "),
        ("[record]\nstreaming = 'maybe'", "[record]: streaming: "),
        ("[record]\ndsn = { vault = 'v' }", KEYS),
        ("[record]\ndsn = { env = 5 }", KEYS),
    ],
)
def test_mistakes_are_refused_with_file_table_and_key(
    command: Command, tmp_path: Path, text: str, error: str
) -> None:
    config = write(tmp_path, text)
    for arguments in (("config", "check", config), ("spec", "--config", config)):
        ended = command(*arguments)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"logicalrep: {config}: {error}"), ended.err
        assert ended.err.count("\n") == 1


SHOP: Final = """\
[record]
dsn = { file = "/run/credentials/logicalrep-record@shop.service/dsn" }
slot = "shop"
publication = ["shop"]
recording = "PLACE/shop"
metrics = "127.0.0.1:9187"
[replicate]
recording = "PLACE/shop"
target = "PLACE/lake"
metrics = "127.0.0.1:9188"
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "", ""),
        (
            "@shop.",
            "@blog.",
            "[record]: dsn: file = '/run/credentials/logicalrep-record@blog.service/dsn': record ",
        ),
        ("service/dsn", "service/key", "systemd makes it from PLACE/shop.key: No such file or directory"),
        ("/run", "PLACE/run", "[record]: dsn: file = 'PLACE/run/credentials/"),
        (
            "/run/credentials/logicalrep-record@shop.service/dsn",
            "PLACE/empty",
            "'PLACE/empty': the file is empty",
        ),
        ('file = "/run', 'env = "/run', "[record]: dsn: env = '/run/credentials/"),
        ('file = "/run', 'command = "/run', "[record]: dsn: command = '/run/credentials/"),
        (
            'slot = "shop"',
            'slot = { env = "EMPTY" }',
            "slot: env = 'EMPTY': the environment variable is empty",
        ),
        ('["shop"]', '[{ env = "A" }]', "publication: env = 'A': the environment variable is not set"),
        ("9188", "9187", "[replicate]: metrics: PLACE/shop.toml: [record] has the same; change one of them"),
        ('shop"\ntarget', 'blog"\ntarget', "the commands have different recordings: PLACE/blog, PLACE/shop"),
    ],
)
def test_problems_of_the_surroundings_are_found(
    command: Command, tmp_path: Path, old: str, new: str, problem: str
) -> None:
    """Each is one line, which names file, command and option."""
    (tmp_path / "shop.dsn").write_text("host=db")
    (tmp_path / "empty").touch()
    config = tmp_path / "shop.toml"
    config.write_text(SHOP.replace(old, new).replace("PLACE", str(tmp_path)))
    ended = command("config", "check", config, EMPTY="")
    if problem:
        assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1), ended.err
        assert ended.err.startswith(f"logicalrep: {config}: ")
        assert problem.replace("PLACE", str(tmp_path)) in ended.err
    else:
        assert (ended.code, ended.out) == (0, f"{config}: the options of 2 commands\n"), ended.err


def test_settings_of_another_database_are_found(command: Command, tmp_path: Path) -> None:
    """A copied file that keeps settings of the first, and a variable that is set for all commands."""
    for name in ("shop", "blog"):
        (tmp_path / f"{name}.dsn").write_text("host=db")
        (tmp_path / f"{name}.toml").write_text(SHOP.replace("PLACE", str(tmp_path)))
    files = tmp_path / "shop.toml", tmp_path / "blog.toml"
    ended = command("config", "check", *files, LOGICALREP_RECORD_PUBLICATION="blog")
    assert ended.code == 1
    found = [line.removeprefix(f"logicalrep: {tmp_path}/") for line in ended.err.splitlines()]
    replaced = "publication: the environment variable LOGICALREP_RECORD_PUBLICATION replaces it"
    assert found == [
        f"shop.toml: [record]: {replaced}",
        "blog.toml: [record]: dsn: file = '/run/credentials/logicalrep-record@shop.service/dsn': record runs "
        "in the unit logicalrep-record@blog, which cannot read the credentials of other units",
        f"blog.toml: [record]: {replaced}",
        f"blog.toml: [record]: recording: {files[0]}: [record] has the same; change one of them",
        f"blog.toml: [record]: slot and dsn: {files[0]}: [record] has the same; change one of them",
        f"blog.toml: [record]: metrics: {files[0]}: [record] has the same; change one of them",
        f"blog.toml: [replicate]: target: {files[0]}: [replicate] has the same; change one of them",
        f"blog.toml: [replicate]: metrics: {files[0]}: [replicate] has the same; change one of them",
    ]


@pytest.mark.parametrize(
    ("reference", "error", "code"),
    [
        ("env = 'MISSING'", "the environment variable is not set", 2),
        ("file = '/no/file'", "No such file or directory", 3),
        ("command = 'false'", "returned non-zero exit status 1", 3),
    ],
)
def test_a_reference_without_a_value_is_refused(
    command: Command, tmp_path: Path, reference: str, error: str, code: int
) -> None:
    """A file may be written later, and a program may print its secret the next time."""
    config = write(tmp_path, f"[record]\ndsn = {{ {reference} }}\nslot = 's'\npublication = ['p']\n")
    ended = command("record", "--config", config, "--recording", tmp_path / "recording")
    assert ended.code == code
    assert ended.err.startswith(f"logicalrep: {config}: dsn: ")
    assert error in ended.err
    assert not (tmp_path / "recording").exists()


def test_environment_variables_have_the_names_of_options(command: Command, tmp_path: Path) -> None:
    """Some parameters of Python functions have other names, because `from` and `for` are keywords."""
    ended = command("serve", LOGICALREP_SERVE_RECORDING=str(tmp_path))
    assert ended.code == 2
    assert f"{tmp_path}: " in ended.err
