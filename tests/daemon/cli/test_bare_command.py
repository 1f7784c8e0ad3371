"""`gpushare` without arguments, in each state in which a new user may find a node."""

import contextlib
import grp
import io
import shutil

import pytest
from machine.members import as_nobody, open_to_members

from gpushare import advice
from gpushare.cli.main import main


class Said(Exception):
    """Carries the output from a call as another user."""


@pytest.fixture
def answer(daemon, tmp_path, monkeypatch):
    """A call that returns what `gpushare` prints for a socket, on a machine without gpushare's unit and without
    engines."""
    monkeypatch.setattr(advice, "UNITS", (str(tmp_path / "units"),))
    which = shutil.which  # searches the default path, too
    monkeypatch.setattr(shutil, "which", lambda name, *_, **__: which(name, path=str(tmp_path / "bin")))
    (tmp_path / "units").mkdir()
    (tmp_path / "bin").mkdir()

    def call(socket):
        monkeypatch.setenv("GPUSHARE_SOCKET", str(socket))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main([]) == 0
        assert all(len(line) <= 100 for line in out.getvalue().splitlines() if str(socket) not in line)
        return out.getvalue()

    return call


def commands(text):
    return [line.strip() for line in text.splitlines() if line.startswith("  ") and not line.startswith("   ")]


def test_nothing_is_installed(answer, tmp_path):
    text = answer(tmp_path / "none.sock")
    assert f"no daemon at {tmp_path}/none.sock" in text
    first = "gpushare run --simulate -- nvidia-smi"
    assert commands(text)[:3] == [first, advice.gpushare("demo"), advice.gpushare("install")]


@pytest.mark.parametrize("systemd", [True, False])
def test_it_is_installed_and_does_not_run(answer, tmp_path, monkeypatch, systemd):
    monkeypatch.setattr(advice, "systemd_runs", lambda: systemd)
    (tmp_path / "units" / "gpushare.service").write_text("")
    text = answer(tmp_path / "none.sock")
    started = ["systemctl start gpushare", "journalctl -u gpushare"] if systemd else [advice.gpushare("daemon")]
    assert commands(text)[: len(started)] == started
    assert "gpushare install" not in text


def test_the_socket_is_not_for_this_user(answer, public):
    group = next(one for one in grp.getgrall() if one.gr_gid not in (0, 65534))
    socket = public.layout.socket
    answer(socket)  # imports everything: the other user cannot read the modules' directory

    def ask():
        raise Said(answer(socket))

    open_to_members(public.layout.socket, group.gr_gid)
    text = as_nobody(ask)
    assert "permission denied" in text
    assert commands(text)[0] == f"sudo usermod -aG {group.gr_name} nobody"
    assert "systemctl" not in text
    open_to_members(public.layout.socket, 0)
    assert "root alone" in as_nobody(ask)


def test_a_node_without_an_engine(answer, daemon):
    text = answer(daemon.layout.socket)
    assert f"{len(daemon.client.devices())} simulated devices, 0 grants" in text
    assert commands(text)[0].startswith("gpushare run --memory ")
    assert "runtime configure" not in text


def test_a_node_with_an_engine_that_is_not_configured(answer, daemon, tmp_path):
    engine = tmp_path / "bin" / "dockerd"
    engine.write_text("#!/bin/sh\necho Docker version 27.0.1, build 1\n")
    engine.chmod(0o755)
    assert commands(answer(daemon.layout.socket))[0] == advice.gpushare("runtime configure --engine docker --restart")


def test_all_is_set(answer, daemon):
    daemon.client.create(memory="1GiB", time=100)
    text = answer(daemon.layout.socket)
    assert "1 grant." in text
    assert commands(text)[:3] == ["gpushare top", "gpushare ps", "gpushare why"]
