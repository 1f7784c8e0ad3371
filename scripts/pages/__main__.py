"""Generates files from the product's own texts: `python scripts/pages` writes them, `--check` compares.

docs/guides/troubleshooting is made from the doctor's checks, docs/reference from the node API's description, from the
types of the configuration and its commented files, from the contract of carriers and from the errors,
docs/security/promises.md from marks of tests, the rooms of docs/concepts/inside from docstrings, and the types of
gpushare/client from those of the node API.
"""

import sys
from pathlib import Path

import api
import carriers
import checks
import client
import configuration
import exits
import promises
import rooms

ROOT = Path(__file__).parents[2]


def pages() -> dict[str, str]:
    """Each generated file, by its name in the repository."""
    of_docs = checks.pages() | {
        "concepts/inside/rooms.md": rooms.page(),
        "reference/api.md": api.page(),
        "reference/carriers.md": carriers.page(),
        "reference/configuration.md": configuration.page(),
        "reference/exit-status.md": exits.page(),
        "security/promises.md": promises.page(),
    }
    return {f"docs/{name}": text for name, text in of_docs.items()} | client.files()


def main() -> int:
    """Writes or checks the pages; returns the exit status."""
    try:
        found = pages()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    wrong = 0
    for name, text in found.items():
        path = ROOT / name
        if sys.argv[1:] != ["--check"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{name} is not what the product states: run make pages", file=sys.stderr)
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
