"""Root's mount namespace on a node with a real driver, whose files are stand-ins here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.paths import PROCESS_SELF

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")

# Enters the namespace of a grant, also in another one's, and prints what it finds: directory, driver, libraries.
ENTER = """
import json, os, sys
from pathlib import Path
from gpushare.inject import apart
driver, interposers, *grants = sys.argv[1:]
environment = {"LD_PRELOAD": interposers, "LD_LIBRARY_PATH": f"{driver}:relative:"}
for grant in grants:
    assert apart.enter(Path(grant), environment, Path("/nonexistent"))
own = Path(apart.PROCESS_SELF)
read = lambda path: path.read_text()
found = {str(path.relative_to(own)): read(path) for path in own.rglob("*") if path.is_file()}
libraries = {name: read(Path(driver, name)) for name in os.listdir(driver)}
writable = {str(path.relative_to(own)): os.access(path, os.W_OK) for path in own.iterdir()}
print(json.dumps([found, libraries, writable]))
"""


@pytest.fixture
def driver(tmp_path) -> Path:
    """As a driver package installs it."""
    directory = tmp_path / "lib"
    directory.mkdir()
    for name in ("libcuda.so.580.1", "libnvidia-ml.so.580.1", "libnvidia-ptxjitcompiler.so.580.1"):
        (directory / name).write_text(f"the driver's {name}")
        soname = name.replace("580.1", "1")
        (directory / soname).symlink_to(name)
        (directory / soname.removesuffix(".1")).symlink_to(soname)
    return directory


@pytest.fixture
def interposers(tmp_path) -> str:
    files = [tmp_path / name for name in ("libgpushare.so", "libgpushare-ml.so")]
    for file in files:
        file.write_text(file.name)
    return ":".join(map(str, files))


def grant(directory: Path, driver: Path) -> Path:
    own = directory / "self"
    (own / "driver").mkdir(parents=True)
    for name in ("limits", "usage"):
        (own / name).write_text(f"{directory.name}'s {name}")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"):
        (own / "driver" / name).symlink_to(driver / name)
    return own


@pytest.mark.parametrize("within", [False, True])
def test_the_grant_has_the_driver_and_its_names_lead_to_the_interposer(tmp_path, driver, interposers, within):
    names = ("outer", "inner") if within else ("inner",)
    grants = [grant(tmp_path / name, driver) for name in names]
    command = [sys.executable, "-c", ENTER, driver, interposers, *grants]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found, libraries, writable = json.loads(done.stdout)
    assert (found["limits"], found["usage"]) == ("inner's limits", "inner's usage")
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        assert found[f"driver/{name}.so.1"] == f"the driver's {name}.so.580.1"
    replaced = {"libcuda": "libgpushare.so", "libnvidia-ml": "libgpushare-ml.so"}
    for name, text in libraries.items():
        assert text == replaced.get(name.partition(".")[0], "the driver's libnvidia-ptxjitcompiler.so.580.1")
    assert writable["usage"]
    assert not (writable["limits"] or writable["self"])
    assert not list(Path(PROCESS_SELF).iterdir()), "outside nothing is seen"
