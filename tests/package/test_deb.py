"""The Debian package: made, checked, then installed, used and purged in a clean Debian 12.

The clean root is made once, in build/; after that neither the test nor the package uses a network.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from machine import debianroots, releases
from machine.bootedroot import booted
from machine.ownroot import OwnRoot

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("package")]

PACKAGES = "python3,systemd"


USE = """\
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
left() { changed | grep -v -e '^./var/lib/dpkg/' -e '^./var/log/' -e '^./var/cache/' || true; }
package=$(ls /run/repository/dist/gpushare_*_$(dpkg --print-architecture).deb)
dpkg -i $package
getent group gpushare
test -f /etc/systemd/system/multi-user.target.wants/gpushare.service
test -e /lib/systemd/system/gpushare-nri.service
test ! -e /etc/systemd/system/multi-user.target.wants/gpushare-nri.service
gpushare install 2>&1 && exit 9
test "$(gpushare adapter prometheus --print rules)" = "$(cat /usr/share/gpushare/prometheus/gpushare.rules.yml)"
test "$(gpushare adapter prometheus --print dashboard)" = "$(cat /usr/share/gpushare/grafana/gpushare.json)"
gpushare daemon --simulate 1x16GiB >/run/said 2>&1 & daemon=$!
until grep -qs ready /run/said; do kill -0 $daemon; done
test "$(stat -c %G:%a /run/gpushare/node.sock)" = gpushare:660
spin=$(dirname $(readlink -f /usr/sbin/gpushare-runtime))/gpushare-spin
mkfifo /run/hold
gpushare run --memory 1GiB --time 50% -- $spin --seconds 30 </run/hold >/run/spun & spun=$!
exec 9>/run/hold
until gpushare ps --json | grep -q '"busy_ns": [1-9]'; do kill -0 $spun; done
gpushare ps
gpushare doctor
echo == removal is refused
dpkg -r gpushare 2>&1 && exit 9
kill $spun; wait $spun || true
until gpushare ps | grep -q 'no grants'; do kill -0 $daemon; done
dpkg -i $package >/dev/null  # over itself
gpushare runtime configure --engine docker
test -e /etc/docker/daemon.json
echo 'ledger_days = 3' >>/etc/gpushare/gpushare.toml
dpkg -r gpushare
test ! -e /etc/docker/daemon.json
echo == removed
left
kill $daemon; wait $daemon
dpkg -P gpushare
echo == purged
left
ls -A /run/gpushare /run/cdi /usr/lib/gpushare /var/lib/gpushare /etc/gpushare 2>/dev/null || true
"""


UNDER_SYSTEMD = """\
set -e
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
mkdir -p /etc/gpushare
echo 'simulate = "1x4GiB"' >/etc/gpushare/gpushare.toml
dpkg --force-confold -i /mnt/*.deb
systemctl is-active gpushare
test "$(systemctl is-enabled gpushare gpushare-nri | tr '\\n' ' ')" = "enabled disabled "
test "$(stat -c %G:%a /run/gpushare/node.sock)" = gpushare:660
runs() { systemctl show --property MainPID --value gpushare; }
first=$(runs)
spin=$(dirname $(readlink -f /usr/sbin/gpushare-runtime))/gpushare-spin
gpushare run --memory 1GiB --time 50% -- $spin --seconds 1
systemctl reload gpushare
test $(runs) = $first
kill -9 $first
until systemctl is-active --quiet gpushare && test $(runs) != $first && gpushare ps; do sleep 0.1; done
gpushare doctor
systemctl start gpushare-nri
python3 /mnt/engine.py
systemctl is-active --quiet gpushare-nri
gpushare ps | grep 'no grants'
dpkg -P gpushare
! systemctl is-active gpushare
test -z "$(systemctl list-unit-files 'gpushare*' --no-legend)"
"""

# Just enough of an engine's NRI for the plugin to give one container a share, and to take it back.
ENGINE = """\
import os, socket, struct

def field(number, *values):
    return b"".join(bytes((number << 3 | 2, len(value))) + value for value in values)  # short ones

def send(connection, stream, kind, data):
    plugin.sendall(struct.pack(">IIIIBB", connection, len(data) + 10, len(data), stream, kind, 0) + data)

def answer(method, given, *words):
    send(1, 3, 1, field(2, method) + field(3, given))
    said = b""
    while not any(word in said for word in words):
        said += plugin.recv(1 << 16) or exit("the plugin has gone")
    return said

os.makedirs("/run/nri")
listener = socket.socket(socket.AF_UNIX)
listener.bind("/run/nri/nri.sock")
listener.listen()
plugin, _ = listener.accept()
plugin.settimeout(30)
assert b"RegisterPlugin" in plugin.recv(1 << 16)
send(2, 1, 2, b"")
wanted = {b"memory": b"1GiB", b"time": b"30%"}
pod = field(6, *(field(1, b"gpushare.dev/" + name) + field(2, value) for name, value in wanted.items()))
said = answer(b"CreateContainer", field(1, pod) + field(2, field(1, b"c1")), b"--grant", b"gpushare: ")
assert b"/run/gpushare/self" in said, said
answer(b"RemoveContainer", field(2, field(1, b"c1")), struct.pack(">IB", 3, 2))  # stream and kind: it has no content
"""


def under_systemd(directory: Path, lower: Path, file: Path) -> None:
    directory.mkdir()
    (directory / "shared").mkdir()
    shutil.copy(file, directory / "shared")
    (directory / "shared" / "engine.py").write_text(ENGINE)
    status, answer = booted(directory, lower, UNDER_SYSTEMD)
    assert status == 0, answer
    assert "ok       daemon" in answer
    assert "cannot be started" not in answer, "what the daemon tries its walls with"
    assert '"event": "idle"' in answer
    assert answer.splitlines()[-1] == "inactive"


def used(directory: Path, lower: Path) -> None:
    directory.mkdir()
    done = OwnRoot(directory, lower)(USE)
    assert done.returncode == 0, done.stdout + done.stderr
    well, refused, removed, purged = done.stdout.split("\n== ")
    assert "active" in well
    assert "came in a package, which has put everything in place" in well
    for line in ("ok       installed parts", "ok       group gpushare", "ok       daemon"):
        assert line in well
    assert "grants live (g-" in refused
    assert "sudo GPUSHARE_FORCE=1 apt remove gpushare" in refused
    kept = {
        "./etc/gpushare/gpushare.toml",
        "./etc/gpushare/tenants.toml",
        "./etc/gpushare/prices.toml",
        "./var/lib/gpushare/ledger.db",
    }
    assert kept <= set(removed.splitlines())
    assert not [line for line in removed.splitlines() if line.startswith("./usr/")]
    assert "removing /var/lib/gpushare" in removed
    assert purged.splitlines() == ["purged"]


@pytest.mark.timeout(400)
def test_made_checked_installed_used_and_purged(tmp_path):
    """GPUSHARE_DEBIANS: further roots with python3, of other releases."""
    with debianroots.made("bookworm", PACKAGES) as clean:
        file = releases.debian_package(f"--wheel={releases.wheel()}")
        clean = clean()
    check = ["lintian", "--profile", "debian", "--fail-on", "error,warning", file]
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # where it leaves temporary files
    with subprocess.Popen(check, stdout=subprocess.PIPE, text=True, env=env) as lintian:
        for number, lower in enumerate([clean, *filter(None, os.environ.get("GPUSHARE_DEBIANS", "").split(":"))]):
            used(tmp_path / str(number), Path(lower))
            under_systemd(tmp_path / f"{number}-booted", Path(lower), file)
        answer = lintian.stdout.read()
    assert (lintian.returncode, answer) == (0, ""), answer
