"""The whole release: made twice, checked, installed and used in bare Debian 12 and 13 and on emulated 64-bit Arm, and
installed over a node of the previous version. `make test-release`: takes minutes, and downloads packages from where
users get them."""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from machine import debianroots, releases
from machine.bootedroot import booted
from machine.emulated import emulated
from releasing.common import arch_of, distribution
from releasing.libraries import fetched
from releasing.wheels import contents

pytestmark = pytest.mark.timeout(3600)  # compiling takes long on a busy machine

DEBIANS = ("bookworm", "trixie")
NODE = Path(__file__).with_name("node.py")


def parts(path: Path) -> dict[str, tuple[object, ...]]:
    """Returns an archive's members in order: name -> metadata and content (a .deb's: its digest). For other files, the
    lines by number."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as files:
            return {one.filename: (one.date_time, one.external_attr, files.read(one)) for one in files.infolist()}
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as files:
            return {
                one.name: (one.mtime, one.mode, one.uid, files.extractfile(one).read() if one.isfile() else b"")
                for one in files
            }
    if path.suffix == ".deb":
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], capture_output=True, check=True).stdout
        listed = subprocess.run(["tar", "-tv", "--full-time"], input=data, capture_output=True, check=True).stdout
        found = {line.split()[5]: (line,) for line in listed.decode().splitlines()}
        files = subprocess.run(["tar", "-x", "--to-command", 'printf "%s " "$TAR_FILENAME"; sha256sum'], input=data,
                               capture_output=True, check=True).stdout  # fmt: skip
        for line in files.decode().splitlines():
            name, digest, _ = line.split()
            found[name] += (digest,)
        return found
    return dict(enumerate(path.read_text().splitlines()))


def first_difference(one: Path, other: Path) -> str:
    if one.read_bytes() == other.read_bytes():
        return ""
    ours, theirs = parts(one), parts(other)
    if [*ours] != [*theirs]:
        return f"{one.name}: names or their order: {[*ours][:5]} ... and {[*theirs][:5]} ..."
    for name in ours:
        if ours[name] != theirs[name]:
            return f"{one.name}: {name}: {str(ours[name])[:300]} and {str(theirs[name])[:300]}"
    return f"{one.name}: how it is packed"


def test_everything_is_there_and_sums_are_right(dist, say):
    version = releases.VERSION
    tags = [f"cp311-abi3-manylinux_2_34_{machine}" for machine in ("x86_64", "aarch64")]
    made = [f"{distribution()}-{version}-{tag}.whl" for tag in tags]
    made += [f"gpushare_{version}_{arch}.deb" for arch in ("amd64", "arm64")]
    expected = {f"{distribution()}-{version}.tar.gz", "SHA256SUMS", *made, *(f"{name}.cdx.json" for name in made)}
    assert {path.name for path in dist.iterdir()} == expected
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    sums = subprocess.run(check, cwd=dist, capture_output=True, check=False)
    assert sums.returncode == 0, sums.stdout
    for path in sorted(dist.iterdir()):
        say(f"{path.stat().st_size / 1e6:6.2f} MB {path.name}")


def test_made_again_elsewhere_they_are_the_same_bytes(dist, again):
    different = [first_difference(path, again / path.name) for path in sorted(dist.iterdir())]
    assert not (found := "\n".join(filter(None, different))), found


def test_no_program_states_where_it_was_made(dist):
    """No program contains a path of the repository, of the folder it was compiled in, or of this machine's Python."""
    for path in dist.glob("*.whl"):
        for name, data in contents(path).items():
            for place in (os.fsencode(releases.ROOT), b"gpushare-dist-", os.fsencode(Path.home()) + b"/"):
                assert place not in data, (path.name, name, place)


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_the_package_has_nothing_that_debian_warns_of(dist, arch, tmp_path, say):
    package = releases.only(dist, f"*_{arch}.deb")
    command = ["lintian", "--profile", "debian", "--fail-on", "error,warning", package]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout) == (0, "")
    say(f"lintian: {package.name} is clean")


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_the_packages_bill_of_materials_lists_what_it_ships(dist, arch, tmp_path):
    package = releases.only(dist, f"*_{arch}.deb")
    text = package.with_name(f"{package.name}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    subprocess.run(["dpkg-deb", "-x", package, tmp_path], check=True)
    assert (tmp_path / "usr/share/doc/gpushare/gpushare.cdx.json").read_text() == text
    bill = json.loads(text)["components"]
    files = {part["name"]: part["hashes"][0]["content"] for part in bill if part["type"] == "file"}
    installed = {
        f"/{path.relative_to(tmp_path)}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in tmp_path.rglob("*")
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"
    }
    assert files == installed
    machine = {subprocess.run(["readelf", "-h", tmp_path / name[1:]], capture_output=True, text=True, check=True)
               .stdout.split("Machine:")[1].split("\n")[0].strip() for name in files}  # fmt: skip
    assert machine == {{"amd64": "Advanced Micro Devices X86-64", "arm64": "AArch64"}[arch]}
    shipped = {path.name.split("-")[0] for path in tmp_path.rglob("*.dist-info")} - {distribution()}
    listed = {part["name"].replace("-", "_"): part["version"] for part in bill if part["type"] == "library"}
    assert shipped == listed.keys() - {"glibc", "libgcc"}


# The commands of a user, on a node without a GPU.
START = """\
set -e
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PIP_ROOT_USER_ACTION=ignore
cp /mnt/resolv.conf /etc/resolv.conf
if [ -e /mnt/ca.pem ]; then export PIP_CERT=/mnt/ca.pem; fi
apt-get -qq update
"""
BY_PIP = """\
apt-get -qq install -y --no-install-recommends python3-venv runc >/dev/null
python3 -m venv /opt/gpushare
/opt/gpushare/bin/pip --disable-pip-version-check install --quiet /mnt/gpushare_node-*.whl
/opt/gpushare/bin/gpushare --version
for run in 1 2 3; do /opt/gpushare/bin/gpushare demo || true; done
"""
BY_APT = """\
cd /mnt
apt-get -qq install -y ./gpushare_*.deb >/dev/null
systemctl stop gpushare  # which says that there is no driver, every few seconds
echo 'simulate = "1x4GiB"' >>/etc/gpushare/gpushare.toml
systemctl start gpushare || { journalctl -q -u gpushare -o cat; exit 1; }
systemctl is-active gpushare
spin=$(dirname $(readlink -f /usr/sbin/gpushare-runtime))/gpushare-spin
gpushare run --memory 1GiB --time 50% -- $spin --seconds 1
gpushare doctor
"""


def bare(directory: Path, release: str, script: str, *files: Path) -> str:
    """Returns the output of a script in a booted copy of that release, which has systemd, what apt needs, and the files
    in /mnt."""
    with debianroots.made(release, "systemd", name=f"{release}-bare") as root:
        lower = root()
    shared = directory / "shared"
    shared.mkdir()
    for file in (*files, Path("/etc/resolv.conf")):
        shutil.copy(file, shared)
    # For a machine that reaches the index with a certificate of its own.
    if certificate := os.environ.get("PIP_CERT"):
        shutil.copy(certificate, shared / "ca.pem")
    status, answer = booted(directory, lower, START + script, seconds=900)
    assert status == 0, answer
    return answer


@pytest.mark.parametrize("release", DEBIANS)
def test_pip_install_and_demo(dist, release, tmp_path, say):
    answer = bare(tmp_path, release, BY_PIP, releases.only(dist, "*x86_64.whl"))
    assert f"gpushare {releases.VERSION}" in answer
    # It measures, so the median of three counts: one that others keep from its processors does not.
    verdicts = sorted(line for line in answer.splitlines() if line.startswith(("PASS: ", "FAIL: ")))
    assert len(verdicts) == 3, answer
    assert verdicts[1].startswith("PASS"), answer
    say(f"{release}: pip install, gpushare demo: {verdicts[1]}")


@pytest.mark.parametrize("release", DEBIANS)
def test_apt_install_and_systemctl_start(dist, release, tmp_path, say):
    answer = bare(tmp_path, release, BY_APT, releases.only(dist, "*_amd64.deb"))
    assert "\nactive\n" in answer
    assert '"event": "idle"' in answer
    assert "ok       installed parts" in answer
    assert "cannot be started" not in answer, "what the daemon tries its walls with"
    say(f"{release}: apt install, systemctl start, gpushare run, gpushare doctor")


UPGRADE_BY_APT = """\
cd /mnt
mkdir -p /etc/gpushare
echo 'simulate = "1x4GiB"' >/etc/gpushare/gpushare.toml
apt-get -qq install -y -o Dpkg::Options::=--force-confold OLD >/dev/null
gpushare --version
spin=$(dirname $(readlink -f /usr/sbin/gpushare-runtime))/gpushare-spin
python3 /mnt/node.py before $spin
first=$(systemctl show --property MainPID --value gpushare)
apt-get -qq install -y -o Dpkg::Options::=--force-confold NEW >/dev/null
python3 /mnt/node.py version VERSION
test $(systemctl show --property MainPID --value gpushare) != $first
journalctl -q -u gpushare -o cat | grep 'is lost' || true
python3 /mnt/node.py after AFTER
gpushare --version
"""
UPGRADE_BY_PIP = """\
apt-get -qq install -y --no-install-recommends python3-venv >/dev/null
python3 -m venv /opt/gpushare
pip() { /opt/gpushare/bin/pip --disable-pip-version-check --quiet "$@"; }
pip install OLD
mkdir -p /etc/gpushare
echo 'simulate = "1x4GiB"' >/etc/gpushare/gpushare.toml
/opt/gpushare/bin/gpushare install
gpushare --version
python3 /mnt/node.py before /opt/gpushare/lib/python3*/site-packages/gpushare/_lib/gpushare-spin
first=$(systemctl show --property MainPID --value gpushare)
pip install --upgrade NEW
gpushare install
python3 /mnt/node.py version VERSION
test $(systemctl show --property MainPID --value gpushare) != $first
python3 /mnt/node.py after AFTER
gpushare --version
"""


def upgraded(directory: Path, script: str, after: str, old: Path, new: Path) -> str:
    words = {"OLD": f"/mnt/{old.name}", "NEW": f"/mnt/{new.name}", "VERSION": releases.VERSION, "AFTER": after}
    for word, meant in words.items():
        script = script.replace(word, meant)
    return bare(directory, "bookworm", script, old, new, NODE)


@pytest.mark.parametrize("way", ["apt", "pip"])
def test_upgrade_keeps_running_grants_and_the_ledger(dist, before, way, tmp_path, say):
    wheel, package = before("before")
    if way == "apt":
        answer = upgraded(tmp_path, UPGRADE_BY_APT, "kept", package, releases.only(dist, "*_amd64.deb"))
    else:
        answer = upgraded(tmp_path, UPGRADE_BY_PIP, "kept", wheel, releases.only(dist, "*x86_64.whl"))
    assert "rows as they were written" in answer
    versions = [line for line in answer.splitlines() if line.startswith("gpushare ")]
    say(f"upgrade by {way}: {' to '.join(versions)}: grants, their programs and the ledger are kept")


def other_pages(tree: Path) -> None:
    path = tree / "native" / "page" / "gs_page.h"
    [line] = [line for line in path.read_text().splitlines() if "GS_PAGE_VERSION =" in line]
    number = int(line.split("=")[1].strip(" ,"))
    path.write_text(path.read_text().replace(line, line.replace(str(number), str(number - 1))))


def test_upgrade_over_other_pages_ends_grants_and_reports_why(dist, before, tmp_path, say):
    _, package = before("other-pages", other_pages)
    answer = upgraded(tmp_path, UPGRADE_BY_APT, "ended", package, releases.only(dist, "*_amd64.deb"))
    assert answer.count("this gpushare speaks") >= 4, answer  # twice in the journal, twice as the grants' reason
    assert "rows as they were written" in answer
    say("upgrade over pages of another version: the grants end, with the reason; the ledger is kept")


ARM = """\
set -e
root=$1 files=$2
over=$root.over
mkdir -p $over
mount -t tmpfs -o mode=755 none $over
mkdir $over/upper $over/work $over/root
mount -t overlay overlay -o userxattr,lowerdir=$root,upperdir=$over/upper,workdir=$over/work $over/root
root=$over/root
mount -t proc proc $root/proc
mount --rbind /sys $root/sys
mount --rbind /dev $root/dev
mount -t tmpfs -o mode=755 none $root/run
mount -t tmpfs -o mode=1777 none $root/tmp
mount --bind $files $root/mnt
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot $root /bin/bash /mnt/script
"""
ON_ARM = (
    START
    + """\
echo "== $(uname -m), $(dpkg --print-architecture)"
apt-get -qq install -y --no-install-recommends python3-venv >/dev/null
python3 -m venv /opt/gpushare
/opt/gpushare/bin/pip --disable-pip-version-check install --quiet --no-index --find-links /mnt /mnt/gpushare_node-*.whl
export PATH=/opt/gpushare/bin:$PATH
USES
echo == package
rm -rf /opt/gpushare /run/gpushare
hash -r
apt-get -qq install -y --no-install-recommends /mnt/gpushare_*_arm64.deb >/dev/null
USES
"""
)
# No special cases for the emulator: what it cannot do shows as failures.
USES = """\
gpushare --version
echo '{"C": 1000, "tenants": [{"name": "a", "g": 600, "demand": 300}, {"name": "b", "g": 400, "demand": 900}]}' |
  gpushare quota solve -
gpushare daemon --simulate 1x4GiB >/run/said 2>&1 & daemon=$!
until grep -qs ready /run/said; do kill -0 $daemon || { cat /run/said; exit 1; }; sleep 0.2; done
gpushare devices
spin=$(find / -xdev -name gpushare-spin)
gpushare run --memory 1GiB --time 50% -- $spin --seconds 2
gpushare doctor || true
kill $daemon
wait $daemon
gpushare usage verify --file /var/lib/gpushare/ledger.db
"""


def test_on_64_bit_arm(dist, tmp_path, say):
    """The wheel and the package in an arm64 Debian 12, whose programs all run under qemu."""
    root = debianroots.KEPT / "bookworm-arm64"
    if not root.is_dir():
        say("an arm64 root, configured under emulation")
        making = root.with_suffix(".new")
        shutil.rmtree(making, ignore_errors=True)
        making.parent.mkdir(parents=True, exist_ok=True)
        options = ["--quiet", "--mode=root", "--skip=check/qemu", "--arch=arm64", "--variant=apt", "--include=python3"]
        made = emulated("mmdebstrap", *options, "bookworm", making, log=tmp_path / "made", timeout=500)
        if made.returncode:
            pytest.skip(f"no arm64 root can be made here (no mirror?): {made.stdout[-500:]}")
        making.rename(root)
    files = tmp_path / "files"
    files.mkdir()
    ours = [releases.only(dist, "*aarch64.whl"), releases.only(dist, "*_arm64.deb")]
    libraries = [path for library in fetched(arch_of("arm64")) for path in library.wheels]
    for file in (*ours, *libraries, Path("/etc/resolv.conf")):
        shutil.copy(file, files)
    (files / "script").write_text(ON_ARM.replace("USES\n", USES))
    done = emulated("sh", "-c", ARM, "sh", root, files, log=tmp_path / "said", timeout=800)
    assert done.returncode == 0, done.stdout
    for way, answer in zip(("pip", "apt"), done.stdout.split("== package"), strict=True):
        for line in (
            f"gpushare {releases.VERSION}",
            '"b": 700',
            "ok       installed parts",
            '{"event": "idle", "kernels": ',
        ):
            assert line in answer, done.stdout
        # The daemon says that the emulator lacks the kernel's device programs, and continues without them.
        assert "cannot load the device program: Function not implemented" in answer
        say(f"arm64, by {way}: daemon, gpushare run, doctor, quota solve, usage verify")
