"""The files of a release: their metadata is right, they are reproducible to the byte, and a node keeps running over an
upgrade. Tests that take minutes are in tests/release."""

import contextlib
import csv
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from machine import releases
from packaging.requirements import Requirement
from releasing import wheels
from run.running import SPIN, Tenant
from run.waiting import until

from gpushare.client import Client
from gpushare.errors import GpushareError
from gpushare.paths import Layout

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("package")]

ROOT = releases.ROOT


@pytest.fixture(scope="module")
def wheel() -> Path:
    return releases.wheel()


def test_the_wheel_is_what_its_name_states(wheel):
    wheels.audit(wheel)
    with zipfile.ZipFile(wheel) as files:
        named = {name: files.read(name) for name in files.namelist()}
        runs = {entry.filename for entry in files.infolist() if entry.external_attr >> 16 & 0o111}
    info = releases.metadata()
    assert f"Tag: {wheel.stem.split('-', 2)[2]}\n" in named[f"{info}/WHEEL"].decode()
    listed = {name: (digest, size) for name, digest, size in csv.reader(named[f"{info}/RECORD"].decode().splitlines())}
    assert listed.keys() == named.keys()
    assert all(size == str(len(named[name])) for name, (_, size) in listed.items() if size)
    programs = {name for name in named if name.startswith("gpushare/_lib/gpushare-")}
    assert len(programs) == 6
    assert programs <= runs
    for name, soname in (("_lib/libgpushare.so", "libcuda.so.1"), ("_lib/sim/libcuda.so.1", "libcuda.so.1")):
        with zipfile.ZipFile(wheel) as files, files.open(f"gpushare/{name}") as file:
            dynamic = ELFFile(file).get_section_by_name(".dynamic")
            assert isinstance(dynamic, DynamicSection)
            assert [tag.soname for tag in dynamic.iter_tags("DT_SONAME")] == [soname]


def test_a_tag_that_claims_too_much_is_refused(wheel, tmp_path):
    claims = tmp_path / wheel.name.replace(wheels.PLATFORM, "manylinux_2_28")
    shutil.copy(wheel, claims)
    with pytest.raises(SystemExit, match="is not what its name stands for"):
        wheels.audit(claims)


def test_its_bill_of_materials_is_valid_and_complete(wheel):
    with zipfile.ZipFile(wheel) as files:
        text = files.read(f"{releases.metadata()}/sboms/gpushare.cdx.json").decode()
        compiled = {name: data for name in files.namelist() if (data := files.read(name))[:4] == b"\x7fELF"}
    assert text == wheel.with_name(f"{wheel.name}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    kinds = {
        kind: {part["name"]: part for part in bill["components"] if part["type"] == kind}
        for kind in ("library", "file")
    }
    digests = {name: part["hashes"][0]["content"] for name, part in kinds["file"].items()}
    assert digests == {name: hashlib.sha256(data).hexdigest() for name, data in compiled.items()}
    asked = {Requirement(one).name for one in releases.project()["dependencies"]}
    assert asked | {"glibc", "libgcc", "multidict", "pycparser"} <= kinds["library"].keys()
    for name, part in kinds["library"].items():
        assert part["version"], name
        assert all("expression" in one or "id" in one["license"] for one in part["licenses"]), (name, part["licenses"])
        digests = [one["hashes"] for one in part.get("externalReferences", ())] or [part["hashes"]]
        assert all(len(one[0]["content"]) == 64 for one in digests), name


MAKE = """\
import sys
from pathlib import Path
from releasing import wheels
from releasing.common import settle, this_machine
root, raw, into = map(Path, sys.argv[1:])
settle()
wheels.source_distribution(root, into)
wheels.finished(raw, this_machine(), into)
"""


def made(tree: Path, into: Path, raw: Path, umask: int, **env: str) -> dict[str, str]:
    """Copies the sources to `tree` and makes the release's files there, the wheel out of `raw`, with this umask and
    environment; returns their digests by name."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            copy = tree / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
            copy.chmod(((ROOT / name).stat().st_mode & 0o100 | 0o666) & ~umask)
    more = {"PYTHONPATH": str(ROOT / "scripts"), "SOURCE_DATE_EPOCH": "1700000000", **env}
    command = [sys.executable, "-c", MAKE, tree, raw, into]
    done = subprocess.run(
        command, env={**os.environ, **more}, umask=umask, capture_output=True, text=True, check=False, cwd=tree
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in into.iterdir()}


def repacked(wheel: Path, path: Path) -> Path:
    """Writes the wheel's files in another order, with other times and modes."""
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w") as new:
        for entry in reversed(old.infolist()):
            if "/sboms/" not in entry.filename:
                entry.date_time = (2001, 2, 3, 4, 5, 6)
                entry.external_attr |= 0o060 << 16
                new.writestr(entry, old.read(entry))
    return path


def test_made_again_elsewhere_they_are_the_same_bytes(wheel, tmp_path):
    raw = repacked(wheel, tmp_path / wheel.name.replace("-manylinux", "-1-manylinux"))
    first = made(tmp_path / "a", tmp_path / "one", wheel, 0o022, TZ="Asia/Tokyo", LC_ALL="C")
    second = made(tmp_path / "elsewhere" / "b", tmp_path / "two", raw, 0o077, TZ="America/Lima", PYTHONHASHSEED="7")
    assert len(first) == 3
    assert first == second


@contextlib.contextmanager
def node(command: Path, state: Path, options: tuple[str, ...] = ("--simulate", "1x16GiB")) -> Iterator[Client]:
    """Runs an installation's daemon and stops it in order at the end; the simulator goes on, as a device would."""
    layout = Layout.of(state)
    with open(state / "log", "ab") as log:
        daemon = subprocess.Popen([command, "daemon", *options, "--state-dir", state], stdout=log, stderr=log)
    client = Client(layout.socket)

    def answers() -> bool:
        assert daemon.poll() is None, (state / "log").read_text()
        with contextlib.suppress(GpushareError):
            return bool(client.version())
        return False

    try:
        until(answers, "the daemon answers")
        yield client
    finally:
        daemon.terminate()
        daemon.wait(30)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gsu-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def installation(place: Path) -> Path:
    """A virtual environment with this one's libraries, but without gpushare."""
    venv.create(place / "venv", symlinks=True)
    [site] = (place / "venv").glob("lib/python*/site-packages")
    libraries = place / "libraries"
    libraries.mkdir()
    [ours] = {path for path in map(Path, sys.path) if (path / "msgspec").is_dir()}
    for path in ours.iterdir():
        if not path.name.startswith("gpushare"):
            (libraries / path.name).symlink_to(path)
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return place / "venv" / "bin"


def install(bin_: Path, wheel: Path) -> None:
    pip = [sys.executable, "-m", "pip", "-qq", "--python", bin_ / "python"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--upgrade", wheel], check=True)


def rows_of(state: Path) -> set[tuple]:
    with contextlib.closing(sqlite3.connect(f"file:{state}/ledger.db?mode=ro", uri=True)) as ledger:
        return {(table, *row) for table in ("runs", "periods") for row in ledger.execute(f"SELECT * FROM {table}")}


@pytest.fixture
def tenants() -> Iterator[list[Tenant]]:
    started: list[Tenant] = []
    yield started
    for tenant in started:
        tenant.kill()


@pytest.fixture
def state(place: Path) -> Iterator[Path]:
    """A daemon's directory; its simulator is killed at the end."""
    directory = place / "state"
    directory.mkdir(mode=0o755)
    yield directory
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0].endswith(b"gpushare-sim") and any(str(directory).encode() in word for word in words):
                os.kill(int(path.parent.name), signal.SIGKILL)


def computing(bin_: Path, client: Client, *options: str) -> Tenant:
    tenant = Tenant([str(bin_ / "gpushare"), "run", "--socket", str(client.path), *options, "--", str(SPIN)])
    assert tenant.tell("alloc 300MiB")["ok"]
    assert tenant.tell("run 1000000")["event"] == "run"
    return tenant


def busy(client: Client) -> dict[str, int]:
    return {grant["id"]: grant["devices"][0]["busy_ns"] for grant in client.grants()}


def books(client: Client, tenants: list[Tenant]) -> dict[str, tuple[int, int]]:
    """Stops the tenants' work; returns each grant's busy time in ns, by our accounting and by the simulator's."""
    for tenant in tenants:
        assert tenant.tell("idle")["event"] == "idle"
    truth = {row["pid"]: row["busy_ns"] for row in client.sim_stats()["devices"][0]["processes"]}
    grants = {grant["id"]: grant for grant in client.grants()}
    return {name: (grant["devices"][0]["busy_ns"], truth[grant["processes"][0]]) for name, grant in grants.items()}


def test_upgrade_keeps_running_grants_and_the_ledger(wheel, place, state, tenants, tmp_path):
    """pip installs the new files while the old daemon and its tenants run; then the daemon is restarted."""
    bin_ = installation(place)
    install(bin_, releases.earlier(wheel, tmp_path, releases.before(releases.VERSION)))
    with node(bin_ / "gpushare", state) as client:
        assert client.version()["version"] == releases.before(releases.VERSION)
        simulator = client.node()["sim_pid"]
        ended = client.create(memory="1GiB", time="10%")
        client.release(ended["id"])
        kept = client.create(memory="1GiB", time="30%", keep=True)
        tenants.append(computing(bin_, client, "--grant", kept["id"]))
        tenants.append(computing(bin_, client, "--memory", "1GiB", "--time", "20%"))
        grants = {grant["id"]: (grant["phase"], grant["processes"]) for grant in client.grants()}
        assert sorted(grants.values()) == sorted(("active", [tenant.pid]) for tenant in tenants)
        until(lambda: all(used > 50_000_000 for used in busy(client).values()), "both compute")
        install(bin_, wheel)
        now = busy(client)
        until(lambda: all(used > now[name] for name, used in busy(client).items()), "the old daemon goes on")
    rows = rows_of(state)
    assert {row[0] for row in rows} == {"runs", "periods"}
    with node(bin_ / "gpushare", state) as client:
        assert client.version()["version"] == releases.VERSION
        assert client.node()["sim_pid"] == simulator
        assert {grant["id"]: (grant["phase"], grant["processes"]) for grant in client.grants()} == grants
        assert client.grant(ended["id"])["phase"] == "released"
        now = busy(client)
        until(lambda: all(used > now[name] for name, used in busy(client).items()), "they compute on")
        begun = books(client, tenants)
        for tenant in tenants:
            assert tenant.tell("run 1000000")["event"] == "run"
        now = busy(client)
        until(lambda: all(used > now[name] + 1_000_000_000 for name, used in busy(client).items()), "and on")
        for name, (used, truth) in books(client, tenants).items():
            # of a second each: the first waits that a busy machine makes late are charged, some 10 ms
            assert used - begun[name][0] == pytest.approx(truth - begun[name][1], rel=0.05), "metered as before"
            assert client.grant(name)["devices"][0]["memory_bytes"] >= 300 << 20
        for tenant in tenants:
            tenant.kill()
        client.release(kept["id"])
        until(lambda: not client.grants(), "they end")
    assert rows <= rows_of(state)
    command = [bin_ / "gpushare", "usage", "verify", "--file", state / "ledger.db"]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "rows as they were written" in verified.stdout


def test_grants_with_pages_of_another_version_end_and_say_so(place, state, tenants, wheel):
    """A release that changes the pages cannot take such grants over. It ends them, says why, and keeps all others."""
    bin_ = installation(place)
    install(bin_, wheel)
    with node(bin_ / "gpushare", state) as client:
        tenants += [computing(bin_, client, "--memory", "1GiB", "--time", "20%") for _ in range(2)]
        grants = {grant["processes"][0]: grant["id"] for grant in client.grants()}
        old, new = (grants[tenant.pid] for tenant in tenants)
    for name in ("limits", "usage"):
        with open(Layout.of(state).grants / old / "self" / name, "r+b") as page:
            page.seek(4)
            version = int.from_bytes(page.read(4), "little")
            page.seek(4)
            page.write((version - 1).to_bytes(4, "little"))
    with node(bin_ / "gpushare", state) as client:
        ended = client.grant(old)
        why = f"limits page has version {version - 1}, this gpushare speaks {version}"
        assert ended["phase"] == "failed"
        assert why in ended["reason"]
        assert f"grant {old} is lost: " in (state / "log").read_text()
        assert tenants[0].process.wait(20) == -signal.SIGKILL, "nobody would meter it"
        assert client.grant(new)["phase"] == "active"
        now = busy(client)[new]
        until(lambda: busy(client)[new] > now, "the other one computes on")
