"""Paths of the programs that `make test-build` builds from tests/CMakeLists.txt, by name."""

from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"


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
