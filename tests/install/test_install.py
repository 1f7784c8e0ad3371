"""`gpushare install` and `uninstall` in a root of their own: the files installed, and the removal of all of them."""

import fcntl
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run.waiting import until

from gpushare.cli.main import main
from gpushare.install.items import items
from gpushare.paths import PACKAGING

UNIT = "etc/systemd/system/gpushare.service"
ENABLED = "etc/systemd/system/multi-user.target.wants/gpushare.service"
CONFIG = "etc/gpushare/gpushare.toml"
MANIFEST = "var/lib/gpushare/installed.json"
ALL = {
    UNIT, "etc/systemd/system/gpushare-nri.service", "etc/systemd/system/gpushare-prometheus.service", ENABLED,
    CONFIG, MANIFEST, "etc/gpushare/tenants.toml", "etc/gpushare/prices.toml", "etc/sysusers.d/gpushare.conf",
    "etc/tmpfiles.d/gpushare.conf", "usr/local/bin/gpushare", "usr/local/bin/gpushare-runtime",
}  # fmt: skip


class Place:
    """A root directory; calling it runs a verb there."""

    def __init__(self, root: Path, capsys) -> None:
        self.root, self._capsys = root, capsys

    def __call__(self, verb: str, *options: str) -> tuple[int, str, str]:
        status = main([verb, "--root", str(self.root), *options])
        out, err = self._capsys.readouterr()
        return status, out, err

    def names(self) -> set[str]:
        return {
            str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_symlink() or path.is_file()
        }

    def state(self) -> dict[str, tuple]:
        """Everything that a second run could change."""
        seen = {}
        for path in self.root.rglob("*"):
            info = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            seen[str(path)] = (content, info.st_mode, info.st_ino, info.st_mtime_ns)
        return seen


@pytest.fixture
def place(tmp_path, capsys):
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    return Place(root, capsys)


def test_puts_everything_and_takes_it_away(place):
    status, out, _ = place("install")
    assert (status, place.names()) == (0, ALL)
    assert f"wrote {place.root / UNIT}" in out
    unit = (place.root / UNIT).read_text()
    assert f"ExecStart={sys.executable} -I -m gpushare daemon\n" in unit
    assert (
        unit.replace(f"{sys.executable} -I -m gpushare", "/usr/bin/gpushare")
        == (PACKAGING / Path(UNIT).name).read_text()
    )
    assert os.readlink(place.root / ENABLED) == f"/{UNIT}"
    assert (place.root / UNIT).stat().st_mode & 0o7777 == 0o644
    assert place("uninstall")[0] == 0
    assert list(place.root.rglob("*")) == [place.root / "etc"]  # made for the lock, before anything else is known
    assert place.names() == set()


def test_what_was_put_can_be_started(place):
    place("install")
    for name in ("gpushare", "gpushare-runtime"):
        assert os.access(place.root / "usr/local/bin" / name, os.X_OK)
    done = subprocess.run(
        [place.root / "usr/local/bin/gpushare", "--version"], capture_output=True, check=True, text=True
    )
    assert done.stdout.startswith("gpushare ")


def test_a_second_run_changes_nothing_and_reports_it(place):
    place("install")
    before = place.state()
    status, out, _ = place("install")
    assert (status, out.splitlines()[-1]) == (0, "nothing to change")
    assert place.state() == before


def test_dry_runs_do_nothing(place):
    status, out, _ = place("install", "--dry-run")
    assert (status, list(place.root.iterdir())) == (0, [])
    assert f"would write {place.root / UNIT}" in out
    place("install")
    before = place.state()
    status, out, _ = place("uninstall", "--dry-run", "--purge")
    assert (status, place.state()) == (0, before)
    assert f"would remove {place.root / UNIT}" in out
    assert f"would remove {place.root / 'var/lib/gpushare'} with all in it" in out


def test_configuration_is_the_administrators(place):
    path = place.root / CONFIG
    path.parent.mkdir(parents=True)
    path.write_text('simulate = "1x1GiB"\n')
    assert place("install")[0] == 0
    assert path.read_text() == 'simulate = "1x1GiB"\n'
    place("uninstall", "--purge")
    assert place.names() == {CONFIG}


def test_changed_files_are_left_and_reported(place):
    place("install")
    (place.root / UNIT).write_text("[Service]\nExecStart=/bin/true\n")
    (place.root / CONFIG).write_text("ledger_days = 3\n")
    status, out, _ = place("install")
    assert status == 0
    assert f"left {place.root / UNIT}: changed since it was installed" in out
    status, out, _ = place("uninstall")
    assert (status, place.names()) == (0, {UNIT, CONFIG})
    assert out.count("it is yours now") == 2


def test_a_disabled_unit_stays_disabled(place):
    place("install")
    (place.root / ENABLED).unlink()
    status, out, _ = place("install")
    assert (status, place.names()) == (0, ALL - {ENABLED})
    assert "it was disabled" in out


def test_what_is_lost_is_put_back(place):
    place("install")
    (place.root / UNIT).unlink()
    assert place("install")[0] == 0
    assert place.names() == ALL


@pytest.mark.parametrize("kind", ["text", "masked", "directory", "fifo"])
def test_what_is_not_ours_is_not_touched(place, kind):
    path = place.root / UNIT
    path.parent.mkdir(parents=True)
    match kind:
        case "text":
            path.write_text("[Service]\n")
        case "masked":
            path.symlink_to("/dev/null")
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
    before = place.state()
    status, _, err = place("install")
    assert status == 1
    assert "`gpushare install` has not put it there; nothing is changed" in err
    assert place.state() == before


def test_a_command_of_another_installation_is_left(place):
    path = place.root / "usr/local/bin/gpushare"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    status, out, _ = place("install")
    assert (status, path.read_text()) == (0, "#!/bin/sh\n")
    assert f"left {path}: another one is there" in out
    place("uninstall")
    assert path.read_text() == "#!/bin/sh\n"


@pytest.mark.promise("root-runs-own-files")
@pytest.mark.parametrize("link", ["etc", "etc/gpushare", "etc/systemd", "var/lib/gpushare", "usr/local/bin"])
def test_no_symlink_leads_out_of_the_root(place, tmp_path, link):
    outside = tmp_path / "outside"
    outside.mkdir()
    (place.root / link).parent.mkdir(parents=True, exist_ok=True)
    (place.root / link).symlink_to(outside)
    status, _, err = place("install")
    assert (status, list(outside.iterdir())) == (1, [])
    assert "is not followed" in err


def test_a_way_that_others_can_change_is_not_gone(place):
    (place.root / "etc").mkdir()
    (place.root / "etc").chmod(0o777)
    status, _, err = place("install")
    assert (status, place.names()) == (1, set())
    assert "can be written by others" in err


def test_a_read_only_place_is_known_before_anything_is_done(place):
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    (place.root / "etc/systemd").mkdir(parents=True)
    command = [sys.executable, "-m", "gpushare", "install", "--root", place.root]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", place.root / "etc/systemd", *command],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, place.names()) == (1, set())
    assert "cannot be written (a read-only file system, or not root); nothing is changed" in done.stderr


def test_without_usr_it_works(place):
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    (place.root / "usr").mkdir()
    command = [sys.executable, "-m", "gpushare", "install", "--root", place.root]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", place.root / "usr", *command], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert place.names() == {name for name in ALL if not name.startswith("usr/")}
    assert "it cannot be made: Read-only file system" in done.stdout


def killed_at(step: int, call) -> bool:
    """Runs `call` in a child that is killed, as by a power cut, at the given step, counting calls that change a
    directory or open a file. Returns whether it was killed before it was done."""
    child = os.fork()
    if child == 0:
        left = itertools.count(step, -1)

        def counting(of):
            def counted(*arguments, **options):
                if next(left) == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return of(*arguments, **options)

            return counted

        for name in ("replace", "rename", "unlink", "mkdir", "rmdir", "symlink", "open"):
            setattr(os, name, counting(getattr(os, name)))
        try:
            os._exit(call()[0])
        finally:
            os._exit(99)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


@pytest.mark.parametrize("verb", ["install", "uninstall"])
@pytest.mark.parametrize("apart", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_is_finished_by_the_next(place, verb, apart, monkeypatch):
    """The run is killed at every `apart`-th step; the next run leaves everything installed, or nothing."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no real power cut here
    for step in itertools.count(0, apart):
        if verb == "uninstall":
            place("install")
        killed = killed_at(step, lambda: place(verb))
        assert place(verb)[0] == 0
        assert place.names() == (ALL if verb == "install" else set())
        if verb == "install":
            assert place("install")[1].splitlines()[-1] == "nothing to change"
            place("uninstall")
            assert place.names() == set()
        if not killed:
            break
    assert step > 20


def test_two_runs_wait_for_each_other(place):
    (place.root / "etc").mkdir()
    descriptor = os.open(place.root / "etc", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    command = [sys.executable, "-m", "gpushare", "install", "--root", place.root]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    until(lambda: all(waits(run.pid) for run in runs))
    assert place.names() == set()
    os.close(descriptor)
    answer = sorted(run.communicate(timeout=60)[0].splitlines()[-1] for run in runs)
    assert answer[1] == "nothing to change" or answer[0] == "nothing to change"
    assert place.names() == ALL


def waits(pid: int) -> bool:
    locks = Path("/proc/locks").read_text()
    return any(f" {pid} " in line and "->" in line for line in locks.splitlines())


def test_a_damaged_manifest_stops_it(place):
    place("install")
    (place.root / MANIFEST).write_text("{")
    status, _, err = place("uninstall")
    assert (status, "is damaged" in err) == (1, True)
    (place.root / MANIFEST).unlink()
    assert place("install")[0] == 0  # it recognises its own files by their content
    assert place("uninstall")[0] == 0
    assert place.names() == set()


def test_an_older_versions_files_are_replaced_and_removed(place):
    place("install")
    manifest = json.loads((place.root / MANIFEST).read_text())
    for name, text in ((UNIT, "[Unit]\n"), ("etc/gpushare-of-old.conf", "old\n")):
        (place.root / name).write_text(text)
        manifest["files"][f"/{name}"] = [hashlib.sha256(text.encode()).hexdigest()]
    (place.root / MANIFEST).write_text(json.dumps(manifest))
    status, out, _ = place("install")
    assert (status, place.names()) == (0, ALL)
    assert f"replaced {place.root / UNIT}" in out
    assert f"removed {place.root / 'etc/gpushare-of-old.conf'}" in out


def test_purge_states_what_it_removes(place):
    place("install")
    (place.root / "var/lib/gpushare/ledger.db").write_text("rows")
    assert f"left {place.root / 'var/lib/gpushare'}" in place("uninstall")[1]
    assert (place.root / "var/lib/gpushare/ledger.db").exists()
    status, out, _ = place("uninstall", "--purge")
    assert (status, place.names()) == (0, set())
    assert f"removing {place.root / 'var/lib/gpushare'} with all in it" in out


def test_whoever_came_in_a_package_is_notified_who_takes_it_away(place, monkeypatch):
    assert "nothing is known to be of `gpushare install`" in place("uninstall")[1]
    monkeypatch.setattr("gpushare.paths.PACKAGING", Path("/nonexistent"))
    assert place("uninstall")[:2] == (
        0,
        "nothing to change: this gpushare came in a package, which takes it away: apt purge gpushare\n",
    )


def test_words_of_a_unit_are_quoted(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/opt/my venv/100%/py$thon")
    [unit] = [item for item in items() if item.path.name == "gpushare.service" and item.kind == "part"]
    assert 'ExecStart="/opt/my venv/100%%/py$$thon" -I -m gpushare daemon\n' in unit.content


def test_a_python_in_the_image_is_named_as_the_image_sees_it(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/images/node/opt/gpushare/bin/python3")
    units = [item for item in items(Path("/images/node")) if item.kind == "part" and item.path.suffix == ".service"]
    for unit, words in zip(units, ("daemon", "adapter nri", "adapter prometheus"), strict=True):
        assert f"ExecStart=/opt/gpushare/bin/python3 -I -m gpushare {words}\n" in unit.content
