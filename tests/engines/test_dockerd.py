"""What dockerd is started with, where that and daemon.json do not go together, what daemon.json has under our name
without us, and where engines look for CDI specs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run.waiting import until

from gpushare.cli.main import main
from gpushare.engines import docker as engine
from gpushare.engines import dockerd
from gpushare.paths import RUNTIME_WRAPPER


@pytest.fixture
def system(tmp_path, monkeypatch) -> Path:
    """A machine's folder of units, with a docker.service, and its defaults file."""
    tmp_path.chmod(0o755)
    units = tmp_path / "units"
    units.mkdir()
    monkeypatch.setattr(dockerd, "_UNITS", (tmp_path / "etc-units", units))
    monkeypatch.setattr(dockerd, "_PIDFILE", tmp_path / "docker.pid")
    monkeypatch.setattr(dockerd, "_DEFAULTS", (tmp_path / "default",))
    return tmp_path


def unit(system: Path, *lines: str, drop_in: str = "") -> None:
    path = system / (f"etc-units/docker.service.d/{drop_in}" if drop_in else "units/docker.service")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["[Unit]", "ExecStart=/no --default-runtime=no", "[Service]", *lines, ""]))


def docker(system: Path, verb: str, *options: str, version: str = "28.5.2") -> int:
    return unnamed(system, verb, "--config", str(system / "daemon.json"), *options, version=version)


def unnamed(system: Path, verb: str, *options: str, version: str = "28.5.2") -> int:
    """Leaves it to gpushare which file dockerd reads."""
    program = system / "dockerd"
    program.write_text(f"#!/bin/sh\necho Docker version {version}, build x\n")
    program.chmod(0o755)
    return main(["runtime", verb, "--engine", "docker", "--executable-path", str(program), *options])


def named() -> set[tuple[str, str]]:
    return {(flag.name, flag.value) for flag in dockerd.flags()}


def test_flags_of_the_unit(system):
    unit(system, "ExecStart=/usr/bin/dockerd -H fd:// \\", " --default-runtime nvidia $DOCKER_OPTS --label=a=${LABEL}")
    assert ("default-runtime", "nvidia") in named()
    unit(system, "Environment='LABEL=b c'", f"EnvironmentFile=-{system}/default", drop_in="10-a.conf")
    (system / "default").write_text("# debian's\nDOCKER_OPTS=\"--feature cdi=true --cdi-spec-dir '/my cdi'\"\n")
    assert {("feature", "cdi=true"), ("label", "a=b c")} <= named()
    places = {flag.name: flag.place for flag in dockerd.flags()}
    assert places["feature"] == str(system / "default")
    assert places["default-runtime"] == str(system / "units/docker.service")
    unit(system, "ExecStart=", "ExecStart=/usr/bin/dockerd --debug", drop_in="20-b.conf")
    assert named() == {("debug", "")}


def test_flags_without_a_unit_and_of_a_process(system):
    (system / "default").write_text("export DOCKER_OPTS='--default-runtime=x'\n")
    assert named() == {("default-runtime", "x")}
    with subprocess.Popen(
        [str(system / "dockerd"), "-c", "input()", "--feature", "y=true"],
        executable=sys.executable, stdin=subprocess.PIPE,
    ) as process:  # fmt: skip
        (system / "docker.pid").write_text(str(process.pid))
        until(lambda: ("feature", "y=true") in named(), "its command line")
        process.stdin.write(b"\n")
    (system / "docker.pid").write_text(str(os.getpid()))
    assert named() == {("default-runtime", "x")}


@pytest.mark.parametrize(
    ("flags", "options", "key"),
    [
        ("--default-runtime=nvidia", ["--set-as-default"], "default-runtime"),
        ("--feature containerd-snapshotter=true", [], "features"),
    ],
)
def test_what_would_keep_docker_from_starting_is_refused(system, flags, options, key, capsys):
    unit(system, f"ExecStart=/usr/bin/dockerd {flags}", drop_in="10-a.conf")
    unit(system, "ExecStart=/usr/bin/dockerd")
    assert docker(system, "configure", *options) == 1
    answer = capsys.readouterr().err
    assert f"{key!r} too" in answer
    assert "docker.service.d/10-a.conf" in answer
    assert not (system / "daemon.json").exists()
    # What is in the file already is status's to say.
    (system / "daemon.json").write_text(json.dumps({key: {} if key == "features" else "nvidia"}))
    docker(system, "status")
    assert f"has {key!r} too: it refuses to start" in capsys.readouterr().out


def test_what_docker_adds_up_or_reads_elsewhere_is_no_conflict(system, capsys):
    unit(system, "ExecStart=/usr/bin/dockerd --add-runtime a=/b --default-runtime a")
    assert docker(system, "configure") == 0
    unit(system, "ExecStart=/usr/bin/dockerd --config-file /other.json --feature cdi=true")
    assert docker(system, "configure") == 0
    unit(system, f"ExecStart=/usr/bin/dockerd --config-file {system}/daemon.json --feature cdi=true")
    assert docker(system, "configure") == 1


@pytest.mark.parametrize("by_unit", [True, False])
def test_the_file_that_docker_is_started_with_is_the_one_that_is_edited(system, by_unit, monkeypatch, capsys):
    usual, named_one = system / "usual.json", system / "srv.json"
    monkeypatch.setattr(engine, "_FILE", usual)
    assert unnamed(system, "configure") == 0
    assert usual.exists()
    assert unnamed(system, "unconfigure") == 0
    if by_unit:
        unit(system, "ExecStart=/usr/bin/dockerd")
        unit(system, "ExecStart=", f"ExecStart=/usr/bin/dockerd --config-file {named_one}", drop_in="a.conf")
    else:
        (system / "default").write_text(f"DOCKER_OPTS='--config-file={named_one}'\n")
    named_one.write_text('{"debug": true}')
    assert unnamed(system, "configure") == 0
    assert f"wrote {named_one}" in capsys.readouterr().out
    assert "gpushare" in json.loads(named_one.read_text())["runtimes"]
    assert not usual.exists()
    unnamed(system, "status")
    answer = capsys.readouterr().out
    assert f" configured      {named_one}" in answer
    assert "does not read" not in answer
    assert unnamed(system, "unconfigure") == 0
    assert named_one.read_text() == '{"debug": true}'
    # Another that is named is edited, and status has it that the service does not read it.
    assert docker(system, "configure") == 0
    docker(system, "status")
    assert f"does not read {system}/daemon.json but {named_one} (--config-file, " in capsys.readouterr().out


def tree(system: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in system.glob("daemon.json*")}


@pytest.mark.parametrize("name", ["gpushare", "mine"])
@pytest.mark.parametrize(
    ("entry", "others"),
    [
        ({"path": "/usr/local/bin/gpushare-runtime", "runtimeArgs": ["--debug"]}, {"features": {"cdi": False}}),
        ({"path": "/usr/local/bin/gpushare-runtime"}, {"features": {"cdi": False}}),
        ({"path": str(RUNTIME_WRAPPER)}, {"features": {"cdi": False}}),
        ({"runtimeType": "io.containerd.x.v1"}, {}),
        ({"path": "/opt/other"}, {"default-runtime": "gpushare"}),
    ],
)
def test_a_runtime_of_our_name_that_is_not_ours_comes_back(system, name, entry, others, capsys):
    config = system / "daemon.json"
    before = json.dumps({"runtimes": {name: entry}, **others, "debug": True})
    config.write_text(before)
    options = ["--runtime-name", name]
    assert docker(system, "status", *options) == 1
    assert "not configured: gpushare runtime configure" in capsys.readouterr().out
    assert docker(system, "unconfigure", *options) == 0
    assert config.read_text() == before
    assert docker(system, "configure", *options) == 0
    assert json.loads(config.read_text())["runtimes"] == {name: {"path": str(RUNTIME_WRAPPER)}}
    assert json.loads(config.read_text()).get("default-runtime") == others.get("default-runtime")
    once = tree(system)
    assert once["daemon.json.gpushare-backup"] == before
    assert docker(system, "configure", *options) == 0
    assert tree(system) == once
    assert docker(system, "unconfigure", *options) == 0
    assert tree(system) == {"daemon.json": before}
    assert docker(system, "unconfigure", *options) == 0
    assert tree(system) == {"daemon.json": before}


def test_a_file_of_our_making_is_known_by_any_runtime_that_was_named(system):
    """There is no backup of it."""
    for options in ([], ["--runtime-path", "/opt/x"], ["--runtime-path", "/opt/x", "--set-as-default"]):
        assert docker(system, "configure", *options) == 0
        assert docker(system, "unconfigure") == 0
        assert tree(system) == {}


def test_cdi_specs_that_docker_looks_for_elsewhere(system, capsys):
    assert docker(system, "configure") == 0
    unit(system, "ExecStart=/usr/bin/dockerd --cdi-spec-dir /etc/cdi-local")
    assert docker(system, "status") == 1
    assert "it reads CDI specs from /etc/cdi-local, and the daemon writes them into /var/run/cdi" in (
        capsys.readouterr().out
    )
    unit(system, "ExecStart=/usr/bin/dockerd")
    for directories, status in ((["/etc/cdi-local"], 1), (["/etc/cdi", "/run/cdi/"], 0), ([], 0)):
        (system / "daemon.json").write_text(json.dumps({"cdi-spec-dirs": directories}))
        docker(system, "configure")
        capsys.readouterr()
        assert docker(system, "status") == status, capsys.readouterr().out


@pytest.mark.parametrize(
    ("engine", "message", "text"),
    [
        ("containerd", "containerd x v1.7.24 x", 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  {}\n'),
        ("containerd", "containerd x v2.1.4 x", 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\n  {}\n'),
        ("crio", "crio version 1.37.0", "[crio.runtime]\n{}\n"),
        ("podman", "podman version 5.4.0", "[engine]\n{}\n"),
    ],
)
def test_cdi_specs_that_others_look_for_elsewhere(system, engine, message, text, capsys):
    program, config = system / engine, system / "config"
    program.write_text(f"#!/bin/sh\necho {message}\n")
    program.chmod(0o755)
    given = ["--engine", engine, "--config", str(config), "--executable-path", str(program)]
    given += ["--hooks-dir", str(system / "hooks")]
    for directories, status in (("/home/x/cdi", 1), ('/x", "/var/run/cdi', 0)):
        config.write_text(text.format(f'cdi_spec_dirs = ["{directories}"]'))
        assert main(["runtime", "configure", *given]) == 0
        assert main(["runtime", "status", *given]) == status
        assert ("reads CDI specs from /home/x/cdi, and" in capsys.readouterr().out) == bool(status)
