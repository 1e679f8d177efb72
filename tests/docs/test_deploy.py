"""The files for systemd, containers and Kubernetes fit the program."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from logicalrep.cli.app import app
from logicalrep.cli.common.configuration import read_configuration

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
USER = 10001
"""ID of the user that runs in containers."""


def check(folder: Path, text: str) -> dict[str, Any]:
    """Check a configuration as `logicalrep config check` does; return the options of its commands by name."""
    path = folder / "logicalrep.toml"
    path.write_text(text)
    group: Any = typer.main.get_command(app)
    return read_configuration(path, group.configurable)


def test_the_configuration_of_the_page_is_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/production.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert check(tmp_path, text).keys() == {"record", "replicate", "status", "doctor", "verify"}


def test_the_steps_of_the_page_make_what_the_configuration_needs(tmp_path: Path) -> None:
    """Run the steps that write files, with a folder in place of /etc; without the DSN, the check fails."""
    page = (ROOT / "docs/howto/production.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (steps,) = re.findall(r"```sh\n(apt-get install .*?)```", page, re.DOTALL)
    lines = [line for line in steps.splitlines() if "/etc/logicalrep" in line]
    codes = []
    for number, kept in enumerate([[one for one in lines if "shop.dsn" not in one], lines]):
        etc = tmp_path / f"etc{number}"
        etc.mkdir()
        (tmp_path / "shop.toml").write_text(text.replace("/etc/", f"{etc}/"))
        script = "\n".join(kept).replace("/etc/", f"{etc}/")
        script = script.replace("/opt/logicalrep/bin/logicalrep", f"{sys.executable} -m logicalrep.cli")
        done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True)
        codes.append(done.returncode)
    assert codes == [1, 0], done.stderr
    assert f"{(etc / 'logicalrep/shop.dsn').stat().st_mode & 0o777:o}" == "600"


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """The objects of Kubernetes, by kind."""
    text = (DEPLOY / "kubernetes/logicalrep.yaml").read_text()
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def test_the_kubernetes_objects_fit_together(objects: dict[str, Any], tmp_path: Path) -> None:
    """Each command of the configuration has a container, with its own port, probes and volumes."""
    commands = check(tmp_path, objects["ConfigMap"]["data"]["logicalrep.toml"])
    workload = objects["StatefulSet"]["spec"]
    pod = workload["template"]["spec"]
    containers = {one["args"][0]: one for one in pod["containers"]}
    assert containers.keys() == commands.keys()
    service = objects["Service"]
    ports = {one["name"]: one["port"] for one in service["spec"]["ports"]}
    volumes = {one["name"] for one in pod["volumes"]}
    volumes |= {one["metadata"]["name"] for one in workload["volumeClaimTemplates"]}
    used: set[str] = set()
    for command, container in containers.items():
        mounts = {one["name"]: Path(one["mountPath"]) for one in container["volumeMounts"]}
        used |= mounts.keys()
        options, name = commands[command], container["name"]
        (port,) = container["ports"]
        assert port == {"name": name, "containerPort": int(options["metrics"].rpartition(":")[2])}
        assert ports.pop(name) == port["containerPort"]
        for probe, page in (("startup", "healthz"), ("liveness", "healthz"), ("readiness", "readyz")):
            assert container[f"{probe}Probe"]["httpGet"] == {"path": f"/{page}", "port": name}
        for option in ("recording", "target"):
            assert Path(options.get(option, mounts["data"])).is_relative_to(mounts["data"])
        if "dsn" in options:
            secret = Path(options["dsn"]["file"])
            assert secret.parent == mounts["secret"]
            assert secret.name in objects["Secret"]["stringData"]
    assert (used, ports) == (volumes, {})
    assert commands["record"]["recording"] == commands["replicate"]["recording"]
    labels = workload["template"]["metadata"]["labels"]
    assert workload["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert workload["serviceName"] == service["metadata"]["name"]
    assert (workload["replicas"], pod["securityContext"]["runAsUser"]) == (1, USER)


def test_a_container_of_kubernetes_runs_its_command(objects: dict[str, Any], tmp_path: Path) -> None:
    """The arguments of each container give the options of its command."""
    path, secret = tmp_path / "logicalrep.toml", tmp_path / "dsn"
    text = objects["ConfigMap"]["data"]["logicalrep.toml"]
    path.write_text(text.replace("/etc/logicalrep-secret/dsn", str(secret)))
    secret.write_text("host=db\n")
    group: Any = typer.main.get_command(app)
    found = {}
    for container in objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]:
        arguments = [one.replace("/etc/logicalrep", str(tmp_path)) for one in container["args"]]
        parent = typer.Context(group)
        command = group.commands[arguments[0]]
        found[container["name"]] = command.make_context(arguments[0], arguments[1:], parent=parent).params
    assert found["recorder"]["dsn"] == "host=db"
    assert (found["recorder"]["slot"], found["recorder"]["snapshot"]) == ("lake", True)
    assert (found["replica"]["recording"], found["replica"]["follow"]) == (
        found["recorder"]["recording"],
        True,
    )


@pytest.mark.parametrize("name", ["record", "replicate"])
def test_a_unit_of_systemd_runs_an_existing_command(name: str, tmp_path: Path) -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((DEPLOY / f"systemd/logicalrep-{name}@.service").read_text())
    _, command, option, path = unit["Service"]["ExecStart"].split()
    assert (command, option, path) == (name, "--config", "/etc/logicalrep/%i.toml")
    page = (ROOT / "docs/howto/production.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert check(tmp_path, text)[name]


@pytest.mark.parametrize("name", ["record", "replicate"])
def test_a_unit_of_systemd_has_few_rights(name: str, tmp_path: Path) -> None:
    """Below 3 of 10, which systemd counts as OK; and what it writes is for its user only."""
    if (program := shutil.which("systemd-analyze")) is None:
        pytest.skip("there is no systemd-analyze")
    unit = shutil.copy(
        DEPLOY / f"systemd/logicalrep-{name}@.service", tmp_path / f"logicalrep-{name}@x.service"
    )
    arguments = [program, "security", "--offline=true", "--threshold=29", "--no-pager", unit]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd before version 250 judges no files")
    assert done.returncode == 0, done.stdout
    text = Path(unit).read_text()
    assert {"UMask=0077", "StateDirectory=logicalrep", "StateDirectoryMode=0700"} <= set(text.splitlines())


@pytest.mark.parametrize("name", ["record", "replicate"])
def test_a_unit_of_systemd_connects_with_tls_and_stops_cleanly(name: str) -> None:
    """An unreadable home folder makes libpq use no TLS; exit code 130 follows SIGTERM."""
    lines = (DEPLOY / f"systemd/logicalrep-{name}@.service").read_text().splitlines()
    assert {"ProtectHome=tmpfs", "SuccessExitStatus=130"} <= set(lines)


def test_the_container_installs_existing_extras_and_starts_a_command() -> None:
    text = (DEPLOY / "container/Containerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'"/source\[(.*)\]"', text)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    group: Any = typer.main.get_command(app)
    (command,) = re.findall(r'CMD \["(\w+)"', text)
    assert command in group.commands
    assert 'ENTRYPOINT ["logicalrep"]' in text
    assert "logicalrep" in project["scripts"]
    assert f"USER {USER}" in text


def test_the_container_gets_the_files_that_the_package_is_built_from() -> None:
    everything, *lines = (ROOT / ".dockerignore").read_text().splitlines()[1:]
    copied = {line.removeprefix("!") for line in lines if line.startswith("!")}
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, build = pyproject["project"], pyproject["tool"]["hatch"]["build"]
    needed = {"pyproject.toml", "hatch_build.py", project["readme"], *project["license-files"]}
    needed |= {Path(one).parts[0] for one in build["targets"]["wheel"]["packages"]}
    assert (everything, copied) == ("*", needed)
