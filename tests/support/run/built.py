"""Paths: of the project, of the support's own programs, and, by name, of those that `make test-build` builds from
tests/CMakeLists.txt."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build"
SUPPORT = ROOT / "tests" / "support"


def program(name: str, tree: str = "wheel") -> Path:
    """The path of a test program, or of the directory of a stand-in driver library.

    `tree` is the build tree: wheel, address, thread, fuzz or arm. Raises FileNotFoundError if it does not exist.
    """
    return file(Path("programs") / name, tree)


def file(path: Path | str, tree: str = "wheel") -> Path:
    """The path of any other file in a build tree."""
    found = BUILD / tree / path
    if not found.exists():
        raise FileNotFoundError(f"{found} is missing: `make test-build` builds it")
    return found
