"""Advice names commands that are there where it is printed."""

import ast
import re
import shutil
import sys
from pathlib import Path

import pytest

import gpushare
from gpushare import advice
from gpushare.adapters import rpc
from gpushare.cli.adapters import extra
from gpushare.cli.main import build_parser
from gpushare.doctor import engines
from gpushare.doctor.finding import Check

PACKAGE = Path(gpushare.__file__).parent
# Where systemd is known to run, or which say that it is for where it does.
KNOW_SYSTEMD = ("advice.py", "cli/node/daemon.py", "cli/node/first.py", "install", "engines", "doctor/engines.py")
OTHERS = {"apt-get", "chmod", "chown", "echo", "groupadd", "journalctl", "kill", "ldconfig", "modprobe", "mount",
          "ip", "nsenter",
          "nvidia-ctk", "nvidia-modprobe", "rm", "systemctl", "ulimit", "usermod"}  # fmt: skip
CHECKS = [
    getattr(sys.modules[name], one)
    for path in sorted((PACKAGE / "doctor").glob("[a-z]*.py"))
    if (name := f"gpushare.doctor.{path.stem}") and __import__(name)
    for one in vars(sys.modules[name])
    if isinstance(getattr(sys.modules[name], one), Check)
]


def test_nothing_says_systemctl_without_a_look_for_systemd():
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith(KNOW_SYSTEMD):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "systemctl" in node.value:
                assert "where systemd runs" in node.value, (name, node.value)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.what}: {check.mend[:40]}")
def test_what_the_doctor_says_to_do_is_a_command_that_is_there(check):
    verbs = build_parser().verbs()
    for quoted in re.findall(r"`([^`]+)`", check.mend):
        words = [word for word in quoted.split() if word != "sudo" and not word.startswith("{")]
        if words[:1] == ["gpushare"]:
            below = verbs[words[1]].verbs()
            assert not below or words[2] in below, quoted
        else:
            assert not words or words[0] in OTHERS, quoted


@pytest.mark.parametrize(
    ("root", "found", "script", "command"),
    [
        (True, None, False, f"{sys.executable} -m gpushare ps"),
        (True, None, True, "SCRIPT ps"),
        (True, "SCRIPT", True, "gpushare ps"),
        (True, "/bin/sh", True, "SCRIPT ps"),
        (False, None, False, f"sudo {sys.executable} -m gpushare ps"),
        (False, "SCRIPT", True, "sudo SCRIPT ps"),
        (False, "/usr/bin/gpushare", False, "sudo gpushare ps"),
        (False, "/home/a/bin/gpushare", False, "sudo /home/a/bin/gpushare ps"),
    ],
)
def test_gpushare_is_named_so_that_it_is_found(monkeypatch, tmp_path, root, found, script, command):
    path = tmp_path / "gpushare"
    if script:
        path.touch()
    monkeypatch.setattr(advice.os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(advice.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda *_, **__: found and found.replace("SCRIPT", str(path)))
    assert advice.gpushare("ps") == command.replace("SCRIPT", str(path))


def test_a_service_is_managed_by_what_runs_here(monkeypatch):
    monkeypatch.setattr(advice.os, "geteuid", lambda: 1000)
    for runs, said in ((True, "`sudo systemctl restart docker`"), (False, "by hand")):
        monkeypatch.setattr(advice, "systemd_runs", lambda runs=runs: runs)
        assert advice.service("restart", "docker", "by hand") == said


def test_systemctl_is_the_systems_own(monkeypatch, tmp_path):
    """Also where the caller's PATH has another one, or none."""
    monkeypatch.setattr(advice, "_SYSTEMD", tmp_path)
    monkeypatch.setattr(advice, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(engines.configuration, "requiring_plugin", lambda: ["crio"])
    assert not list(engines._plugin())
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "systemctl").chmod(0o755)
    assert [finding.level for finding in engines._plugin()] == ["missing"]


def test_the_daemon_is_started_by_what_starts_it_here(monkeypatch, tmp_path):
    monkeypatch.setattr(advice.os, "geteuid", lambda: 0)
    monkeypatch.setattr(advice, "UNITS", (str(tmp_path),))
    monkeypatch.setattr(advice, "systemd_runs", lambda: True)
    assert advice.daemon() == "`gpushare daemon`"
    (tmp_path / "gpushare.service").touch()
    assert advice.daemon() == "`systemctl start gpushare`"
    monkeypatch.setattr(advice, "systemd_runs", lambda: False)
    assert advice.daemon() == "`gpushare daemon`"


def test_a_library_of_an_extra_is_installed_for_the_python_that_runs(monkeypatch):
    said = str(extra.missing(ImportError("No module named grpc"), "nomad"))
    assert said.endswith(f"{sys.executable} -m pip install 'gpushare-node[nomad]'") and "grpc" in said
    monkeypatch.setattr(extra.importlib.util, "find_spec", lambda _: None)
    assert f"python3 -m pip --python {sys.executable} install" in str(extra.missing(ImportError("x"), "kubernetes"))
    assert "extras `kubernetes` and `nomad`" in rpc.__doc__
