"""The demo's leftovers are removed even if it is interrupted at a bad moment."""

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from gpushare.demo import stage
from gpushare.demo.container import Container
from gpushare.demo.interrupts import interruptible, uninterrupted
from gpushare.errors import FailedError


@pytest.fixture
def busy(tmp_path):
    """A directory that cannot be removed while something is mounted in it."""
    where = tmp_path / "where"
    (where / "mounted").mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "none", where / "mounted"], check=False).returncode:
        pytest.skip("nothing can be mounted here, so no container started either")
    yield where
    subprocess.run(["umount", where / "mounted"], capture_output=True, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.skipif(shutil.which("runc") is None, reason="runc is not installed")
def test_a_container_that_was_starting_at_the_interrupt_is_ended(tmp_path, monkeypatch, number):
    container, started, real = (
        Container("one", tmp_path, tmp_path / "runc", tmp_path / "none.sock"),
        [],
        subprocess.Popen,
    )

    def start_interrupted(_command, **options):
        started.append(real(["cat"], **options))
        os.kill(os.getpid(), number)
        return started[0]

    with interruptible(), monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", start_interrupted)
        with pytest.raises(KeyboardInterrupt):
            container.start({})
    container.end()
    assert started[0].poll() is not None
    started[0].stdout.close()


def test_an_interrupt_waits_for_what_must_be_whole():
    done = []
    with interruptible(), pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            with uninterrupted():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("inner")
            done.append("outer")
        done.append("never")
    assert done == ["inner", "outer"]


def test_removal_waits_for_who_is_still_there(busy):
    # --lazy: the removal may have the mount in use at that moment.
    threading.Timer(0.3, subprocess.run, [["umount", "--lazy", busy / "mounted"]]).start()
    stage._remove(busy)
    assert not busy.exists()


def test_what_cannot_be_removed_is_reported(busy, monkeypatch):
    monkeypatch.setattr(stage, "REMOVE_SECONDS", 0.1)
    with pytest.raises(FailedError, match="cannot be removed"):
        stage._remove(busy)
    assert Path(busy).exists()
