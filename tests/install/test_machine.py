"""`gpushare install` and `uninstall` of the machine itself: in a copy of its root, with a systemctl that records its
arguments, and a running daemon."""

import re
import sys

import pytest
from machine.ownroot import OwnRoot

from gpushare import paths

GPUSHARE = f"{sys.executable} -m gpushare"
SYSTEMD = f"""\
mkdir -p /run/systemd/system
cat >/usr/bin/systemctl <<'END'
#!/bin/sh
echo "$*" >>/run/asked
case $1 in
is-active) test -e /run/active ;;
start | restart) test ! -e /run/broken && touch /run/active || {{ echo "Job failed." >&2; exit 1; }} ;;
stop) rm -f /run/active ;;
esac
END
chmod +x /usr/bin/systemctl
! getent group gpushare >/dev/null || groupdel gpushare
gpushare() {{ {GPUSHARE} "$@"; }}
asked() {{ echo ==; cat /run/asked; echo ==; : >/run/asked; }}
"""
DAEMON = f"""\
{GPUSHARE} daemon --simulate 1x1GiB >/run/said 2>&1 & daemon=$!
until grep -qs ready /run/said; do kill -0 $daemon; done
"""
GRANT = (
    """gpushare grant create --memory 300MiB --time 10% --json | sed -n 's/^ *"id": "\\(g-.*\\)",/\\1/p' | head -1"""
)


@pytest.fixture
def root(tmp_path):
    return OwnRoot(tmp_path)


def test_a_machine_with_systemd(root):
    done = root(
        SYSTEMD
        + """
        changed >/run/before
        gpushare install; asked; getent group gpushare
        gpushare install; asked
        gpushare uninstall --purge; asked
        getent group gpushare || echo no group
        changed | diff /run/before -
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, asked_first, second, asked_second, third, asked_third, end = done.stdout.split("==\n")
    assert "made the group gpushare" in first
    assert "gpushare.service: started" in first
    assert asked_first.splitlines() == [
        "daemon-reload",
        "is-active --quiet gpushare.service",
        "start gpushare.service",
        "try-restart gpushare-nri.service gpushare-prometheus.service",
    ]
    assert second.startswith("gpushare:")
    assert "nothing to change" in second
    assert asked_second == ""
    assert "removed the group gpushare" in third
    assert asked_third.splitlines()[1:] == [
        "stop gpushare.service",
        "disable --now gpushare-nri.service gpushare-prometheus.service",
        "daemon-reload",
    ]
    assert end == "no group\n"


def test_a_daemon_that_does_not_start_is_reported_and_tried_again(root):
    done = root(
        SYSTEMD
        + """
        touch /run/broken
        gpushare install && exit 9
        asked >/dev/null; rm /run/broken
        gpushare install; asked
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpushare.service does not run (Job failed.): see `journalctl -u gpushare`" in done.stderr
    assert "gpushare.service: started" in done.stdout


def test_nothing_goes_while_grants_live(root):
    done = root(
        f"""
        gpushare() {{ {GPUSHARE} "$@"; }}
        {DAEMON}
        gpushare install | grep -e 'systemd does not run here'
        id=$({GRANT})
        gpushare uninstall && exit 9 || echo status $?
        gpushare uninstall --purge --force && exit 9 || echo status $?
        test -e /etc/systemd/system/gpushare.service
        gpushare grant release $id >/dev/null
        gpushare uninstall | grep gpushare.service
        test ! -e /etc/systemd/system/gpushare.service
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("status 3") == 2
    live, runs = done.stderr.splitlines()[:2]
    assert live.startswith("gpushare: grants live (g-")
    assert "or give --force; nothing is removed" in live
    assert re.fullmatch(
        r"gpushare: a daemon runs in /run/gpushare: stop it \(`kill \d+`\) first; nothing is removed", runs
    )


@pytest.mark.promise("root-runs-own-files")
def test_only_root_and_only_from_where_root_alone_can_write(root):
    done = root(
        f"""
        setpriv --reuid 65534 --clear-groups {GPUSHARE} install && exit 9
        chown 65534 {paths.__file__}
        {GPUSHARE} install && exit 9
        test ! -e /etc/systemd/system/gpushare.service
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "only root can change what this machine starts" in done.stderr
    assert "paths.py can be written by others" in done.stderr
    assert "sudo python3 -m venv /opt/gpushare" in done.stderr


def test_a_disabled_unit_is_not_started_and_a_running_one_is_restarted(root):
    done = root(
        SYSTEMD
        + """
        gpushare install >/dev/null
        rm /etc/systemd/system/multi-user.target.wants/gpushare.service
        older() { sed -i 's/"version": "[^"]*"/"version": "0.0.1"/' /var/lib/gpushare/installed.json; : >/run/asked; }
        older; gpushare install >/dev/null; asked
        rm /run/active; older; gpushare install >/dev/null; asked
        """
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, running, _, stopped, _ = done.stdout.split("==\n")
    assert "restart gpushare.service" in running.splitlines()
    assert not [line for line in stopped.splitlines() if line.startswith(("start", "restart"))]
