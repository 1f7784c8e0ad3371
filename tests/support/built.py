"""The programs that tests start, by name: what `make test-build` made of tests/CMakeLists.txt."""

from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"


def program(name: str, tree: str = "test") -> Path:
    """The file of a test program, or the directory of a library in a driver's place.

    `tree` is the build it belongs to: test, address, thread, fuzz or arm. Raises FileNotFoundError when it is missing.
    """
    return file(Path("programs") / name, tree)


def file(path: Path | str, tree: str = "test") -> Path:
    """Anything else of a build tree, by its path in it."""
    found = BUILD / tree / path
    if not found.exists():
        raise FileNotFoundError(f"{found} is missing: `make test-build` builds it")
    return found
