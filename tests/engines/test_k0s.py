"""`gpushare runtime` on the files of k0s, which writes the main one anew and merges those of a directory into it."""

import tomllib

import pytest

from gpushare.cli.main import main
from gpushare.engines import configuration, k0s

MANAGED = (
    "# k0s_managed=true\n# This is a placeholder configuration for k0s managed containerd.\n"
    'version = 2\nimports = ["{}/containerd-cri.toml",]\n'
)


@pytest.fixture
def etc(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "containerd-cri.toml").write_text('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nx = 1\n')
    (tmp_path / "containerd.toml").write_text(MANAGED.format(tmp_path))
    program = tmp_path / "containerd"
    program.write_text("#!/bin/sh\necho containerd x v1.7.27 x\n")
    program.chmod(0o755)
    return tmp_path


def run(etc, verb: str, config: str) -> int:
    program = ["--executable-path", str(etc / "containerd")]
    return main(["runtime", verb, "--engine", "containerd", "--config", str(etc / config), *program])


@pytest.mark.parametrize("leading", ["", "\n"])
def test_what_it_writes_itself_is_left_alone(etc, leading, capsys):
    """Before 1.30 it wrote an empty line above its own."""
    path = etc / "containerd.toml"
    path.write_text(leading + path.read_text())
    untouched = {one: one.read_text() for one in etc.iterdir()}
    assert run(etc, "configure", "containerd.toml") == 1
    answer = capsys.readouterr().err
    assert f"{path} is left alone: k0s writes it anew" in answer
    assert f"--config {etc}/containerd.d/gpushare.toml --executable-path /var/lib/k0s/bin/containerd" in answer
    assert {one: one.read_text() for one in etc.iterdir()} == untouched
    assert run(etc, "status", "containerd.toml") == 1
    assert "k0s writes it anew" in capsys.readouterr().out


def test_what_is_below_its_line_is_taken_out_and_not_called_well(etc, capsys):
    """An earlier version of gpushare wrote there."""
    path = etc / "containerd.toml"
    before = path.read_text()
    path.write_text(before.partition("\n")[2])
    (etc / "containerd-cri.toml").unlink()
    assert run(etc, "configure", "containerd.toml") == 0
    path.write_text("# k0s_managed=true\n" + path.read_text())
    assert run(etc, "status", "containerd.toml") == 1
    assert "k0s writes it anew" in capsys.readouterr().out
    assert run(etc, "unconfigure", "containerd.toml") == 0
    assert path.read_text() == before


def test_a_file_that_it_merges(etc):
    assert run(etc, "configure", "containerd.d/gpushare.toml") == 0
    made = tomllib.loads((etc / "containerd.d/gpushare.toml").read_text())
    assert made["version"] == 2  # of its containerd
    assert "gpushare" in made["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    assert run(etc, "unconfigure", "containerd.d/gpushare.toml") == 0
    assert not (etc / "containerd.d/gpushare.toml").exists()


def test_a_node_whose_only_containerd_is_its(etc, monkeypatch, capsys):
    monkeypatch.setattr(k0s, "MAIN", etc / "containerd.toml")
    monkeypatch.setattr(configuration, "installed", lambda _engine, _options: None)
    assert main(["runtime", "configure", "--engine", "containerd", "--dry-run"]) == 1
    assert f"configure --engine containerd --config {etc}/containerd.d/gpushare.toml" in capsys.readouterr().err
