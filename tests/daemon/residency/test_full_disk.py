"""The daemon's disk is full while memory moves: it moves all the same, and nothing of it is lost."""

import subprocess

import pytest
from machine.fulldisk import fill
from run.movedprogram import MovedProgram


@pytest.fixture
def node(make_daemon, tmp_path):
    """A daemon whose state directory is a disk of 16 MiB."""
    home, config = tmp_path / "node", tmp_path / "gpushare.toml"
    home.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=755", "none", home], check=False).returncode:
        pytest.skip("needs the right to mount")
    config.write_text('[memory]\nhost_pool = "1GiB"\nmove_seconds = 60\n')
    made = make_daemon("--simulate", "1x16GiB", "--config", str(config), directory=home).start()
    yield made
    made.end()
    subprocess.run(["umount", "-l", home], check=True)


@pytest.mark.parametrize("killed", [False, True])
def test_a_program_is_whole_after_a_full_disk(node, killed):
    program = MovedProgram(node)
    ballast = fill(node.layout.socket.parents[1])
    program.suspended()
    if killed:
        node.kill()
        node.start()
        program.comes_to("suspended", "resident")
    ballast.unlink()
    node.client.resume(program.id)
    program.is_whole()
    program.end()
