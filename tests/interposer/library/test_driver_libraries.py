"""Libraries that are found by name. The real driver opens its compilers by name; in a container they exist only among
the grant's mounts. Programs open the driver's libraries, some by names without a version."""

import os
import shutil
import subprocess
import sys

import pytest

from gpushare import paths

COMPILER = "libnvidia-ptxjitcompiler.so.1"
# A driver that behaves like the real one: the result of an unhooked function shows whether its compiler was found.
DRIVER = f"""
#include <dlfcn.h>
#include <stdlib.h>
int cuDriverGetVersion(int *version) {{
  void *compiler = dlopen("{COMPILER}", RTLD_NOW);
  int (*which)(void) = compiler ? (int (*)(void))dlsym(compiler, "which") : NULL;
  *version = which ? which() : -1;
  return 0;
}}
"""
PROGRAM = """
#include <stdio.h>
int cuDriverGetVersion(int *version);
int main(void) {
  int version = 0;
  int code = cuDriverGetVersion(&version);
  printf("%d %d\\n", code, version);
  return 0;
}
"""
# A container's view: /run contains only the grant's mounts.
CONTAINER = """
mount -t tmpfs none /run && mkdir -p /run/gpushare/self && cp -r "$0"/driver /run/gpushare/self/ && exec "$@"
"""

namespace = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="makes a mount namespace: needs root and unshare(1)"
)


def library(path, source, *, soname):
    path.parent.mkdir(exist_ok=True)
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), f"-Wl,-soname,{soname}", "-ldl"]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.fixture
def program(tmp_path):
    library(tmp_path / "driver" / "libcuda.so.1", DRIVER, soname="libcuda.so.1")
    library(tmp_path / "driver" / COMPILER, "int which(void) { return 580; }", soname=COMPILER)
    made = tmp_path / "program"
    command = ["cc", "-x", "c", "-", "-o", str(made), "-x", "none", str(paths.INTERPOSER), "-ldl"]
    subprocess.run(command, input=PROGRAM, text=True, check=True)
    return made


def printed_by(tmp_path, program, **environment) -> str:
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", CONTAINER, str(tmp_path), str(program)]
    env = {**os.environ, "LD_PRELOAD": str(paths.INTERPOSER), **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


@namespace
def test_the_driver_finds_its_compilers_in_a_container(tmp_path, program):
    assert printed_by(tmp_path, program) == "0 580\n"


@namespace
def test_those_of_the_image_are_of_another_driver(tmp_path, program):
    """As in an image with forward-compatibility libraries on its LD_LIBRARY_PATH."""
    library(tmp_path / "compat" / COMPILER, "int which(void) { return 470; }", soname=COMPILER)
    assert printed_by(tmp_path, program, LD_LIBRARY_PATH=str(tmp_path / "compat")) == "0 580\n"


OPENED = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(*(name for name in ("gpushare_interposer", "cuInit", "nvmlInit_v2", "cuNoSuch") if hasattr(library, name)))
"""


@pytest.mark.parametrize(("name", "function"), [("libcuda.so", "cuInit"), ("libnvidia-ml.so", "nvmlInit_v2")])
def test_no_name_leads_past_us(tmp_path, name, function):
    """A driver's package also has its library under the name without a version; Numba tries that one first."""
    for version in ("", ".1"):
        (tmp_path / f"{name}{version}").symlink_to(paths.SIM_LIB_DIR / f"{name}.1")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}

    def opened(file: str, *preload) -> list[str]:
        command = [sys.executable, "-c", OPENED, file]
        more = {"LD_PRELOAD": ":".join(map(str, preload))}
        return subprocess.run(command, env=env | more, capture_output=True, text=True, check=True).stdout.split()

    for file in (name, f"{name}.1"):
        assert opened(file) == [function]
        assert opened(file, *paths.INTERPOSERS) == ["gpushare_interposer", function]
