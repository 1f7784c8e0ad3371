"""Where Podman is configured to look for hooks, and where ours is."""

import json
import shutil
import sys

import pytest
from machine.ownroot import OwnRoot

from gpushare.cli.main import main
from gpushare.engines import crio, podman
from gpushare.engines.podman import hook_text


@pytest.fixture
def etc(tmp_path, monkeypatch):
    """A machine's /etc/containers without CRI-O, and directories of hooks."""
    tmp_path.chmod(0o755)
    (tmp_path / "containers.conf.d").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(podman, "_HOOKS", str(tmp_path / "usual"))
    monkeypatch.setattr(podman, "_crio_reads", lambda directory: False)
    return tmp_path


def run(etc, verb: str, *options: str) -> int:
    config = etc / "containers.conf.d/50-gpushare.conf"
    return main(["runtime", verb, "--engine", "podman", "--config", str(config), *options])


def named(etc, *directories: str, file: str = "containers.conf", more: str = "") -> None:
    listed = ", ".join(f'"{etc}/{name}"' for name in directories) + more
    (etc / file).write_text(f"[engine]\nhooks_dir = [{listed}]\n")


def places(etc) -> list[str]:
    return sorted(str(path.parent.relative_to(etc)) for path in etc.rglob("gpushare.json"))


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        (["a"], None, "a"),
        (["a", "b"], None, "b"),
        (["a", "none"], None, "a"),
        (["none"], None, "none"),
        (["a"], ["b"], "b"),
    ],
)
def test_the_hook_is_where_podman_reads_it(etc, first, second, place, capsys):
    named(etc, *first)
    if second:
        named(etc, *second, file="containers.conf.d/20-own.conf")
    assert run(etc, "configure") == 0
    assert places(etc) == [place]
    assert (etc / place / "gpushare.json").read_text() == hook_text()
    capsys.readouterr()
    assert run(etc, "configure") == 0
    assert "nothing to change" in capsys.readouterr().out
    assert run(etc, "status") in (0, 1)
    assert "reads hooks from" not in capsys.readouterr().out
    assert run(etc, "unconfigure") == 0
    assert places(etc) == []


def test_a_list_that_adds_to_those_before(etc):
    named(etc, "a")
    named(etc, "b", file="containers.conf.d/20-own.conf", more=", {append = true}")
    options = podman.Options(config=etc / "containers.conf.d/50-gpushare.conf")
    assert podman.hooks_dirs(options) == [etc / "a", etc / "b"]
    (etc / "containers.conf").unlink()
    assert podman.hooks_dirs(options) == [etc / "usual", etc / "b"]


def test_one_that_is_configured_later(etc, capsys):
    assert run(etc, "configure") == 0
    assert places(etc) == ["usual"]
    named(etc, "a")
    run(etc, "status")
    answer = capsys.readouterr().out
    assert f"it reads hooks from {etc}/a, and gpushare's is not there" in answer
    assert "gpushare runtime configure --engine podman" in answer
    assert run(etc, "configure") == 0
    assert "a" in places(etc)
    capsys.readouterr()
    run(etc, "status")
    assert "reads hooks from" not in capsys.readouterr().out
    # What is read stays where it is.
    named(etc, "a", "b")
    assert run(etc, "configure") == 0
    assert "b" not in places(etc)


def test_where_none_are_read(etc, capsys):
    named(etc)
    assert run(etc, "configure") == 0
    assert places(etc) == []
    assert run(etc, "status") == 1
    assert "it reads no hooks, since hooks_dir is empty" in capsys.readouterr().out
    assert run(etc, "unconfigure") == 0


def test_another_programs_hook_is_left_alone(etc, capsys):
    named(etc, "a")
    (etc / "a/gpushare.json").write_text(json.dumps({"hook": {"path": "/bin/true"}}))
    assert run(etc, "configure") == 1
    assert "a/gpushare.json is left alone: it is another program's hook" in capsys.readouterr().err
    assert not (etc / "containers.conf.d/50-gpushare.conf").exists()
    assert run(etc, "unconfigure") == 0
    assert places(etc) == ["a"]


def test_one_that_cri_o_reads_too_is_the_last_choice(etc, monkeypatch, capsys):
    named(etc, "a", "b")
    monkeypatch.setattr(podman, "_crio_reads", lambda directory: directory.name == "b")
    assert run(etc, "configure") == 0
    assert places(etc) == ["a"]
    named(etc, "b")
    capsys.readouterr()
    run(etc, "status")
    assert f"no hook in {etc}/b, where CRI-O would meet it" in capsys.readouterr().out


def test_which_directories_cri_o_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(crio, "_FILE", tmp_path / "crio.conf.d/99-gpushare.conf")
    assert crio.hooks_dirs() == list(crio.HOOKS)
    (tmp_path / "crio.conf.d").mkdir()
    (tmp_path / "crio.conf.d/10-own.conf").write_text('[crio.runtime]\nhooks_dir = ["/opt/hooks"]\n')
    assert [str(one) for one in crio.hooks_dirs()][-1] == "/opt/hooks"
    (tmp_path / "crio.conf.d/10-own.conf").write_text("[crio")
    assert crio.hooks_dirs() == list(crio.HOOKS)


@pytest.mark.skipif(not shutil.which("podman"), reason="podman is not installed")
def test_podman_itself_reads_that_directory(tmp_path):
    """Of the directories that podman states as its default, ours is in the last."""
    done = OwnRoot(tmp_path)(
        """
        mkdir -p /etc/containers/oci/hooks.d /etc/containers/containers.conf.d /opt/hooks
        printf '[engine]\nhooks_dir = ["/etc/containers/oci/hooks.d"]\n' >/etc/containers/containers.conf
        gpushare() { PROGRAM -m gpushare runtime "$@" --engine podman; }
        read_by_podman() { podman --help | sed -n 's/.*--hooks-dir.*default \\[\\(.*\\)\\].*/\\1/p' | tr , '\\n'; }
        gpushare configure
        test -e $(read_by_podman | tail -n1)/gpushare.json
        printf '[engine]\nhooks_dir = ["/etc/containers", "/opt/hooks"]\n' >/etc/containers/containers.conf.d/9.conf
        gpushare configure
        test "$(read_by_podman | tail -n1)" = /opt/hooks
        test -e /opt/hooks/gpushare.json
        gpushare unconfigure
        test -z "$(find /etc/containers /opt/hooks /usr/share/containers -name gpushare.json)"
        """.replace("PROGRAM", sys.executable)
    )
    assert done.returncode == 0, done.stdout + done.stderr
