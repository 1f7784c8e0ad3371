"""Generates pages of docs/ from the product's own texts: `python scripts/pages` writes them, `--check` compares.

docs/guides/troubleshooting is made from the doctor's checks, docs/reference from the node API's description, from the
types of the configuration and its commented files, and from the errors, docs/security/promises.md from marks of tests,
the rooms of docs/concepts/inside from docstrings.
"""

import sys
from pathlib import Path

import api
import checks
import configuration
import exits
import promises
import rooms

DOCS = Path(__file__).parents[2] / "docs"


def pages() -> dict[str, str]:
    """Each generated page, by its name in docs/."""
    return checks.pages() | {
        "concepts/inside/rooms.md": rooms.page(),
        "reference/api.md": api.page(),
        "reference/configuration.md": configuration.page(),
        "reference/exit-status.md": exits.page(),
        "security/promises.md": promises.page(),
    }


def main() -> int:
    """Writes or checks the pages; returns the exit status."""
    try:
        found = pages()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    wrong = 0
    for name, text in found.items():
        path = DOCS / name
        if sys.argv[1:] != ["--check"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"docs/{name} is not what the product states: run make pages", file=sys.stderr)
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
