"""Makes the pictures of the README and the documentation, each of a real run: `make pictures`.

scripts/pictures [WORD...]     # only the steps whose line contains one of the words
"""

import html
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import terminal  # noqa: E402
import usage  # noqa: E402

PICTURES, README = ROOT / "docs" / "pictures", ROOT / "README.md"
BEGIN, END = "<!-- verdict: written by make pictures -->", "<!-- end of verdict -->"
GPUSHARE = [sys.executable, "-P", "-m", "gpushare"]
BYTES_MAX = 100 << 10


def save(name: str, text: str) -> None:
    """Writes a picture. Raises RuntimeError if it is too large for a page, or names a path of this machine."""
    if len(text) > BYTES_MAX:
        raise RuntimeError(f"{name} has {len(text)} bytes: at most {BYTES_MAX}")
    if lost := [path for path in (str(ROOT), str(Path.home()), tempfile.gettempdir()) if path != "/" and path in text]:
        raise RuntimeError(f"{name} names {lost[0]}, a path of this machine")
    (PICTURES / name).write_text(text)


def verdict(picture: str) -> str:
    """The verdict in a picture of the demo, as text for the README, for readers who do not see pictures."""
    shown = html.unescape(picture.partition('<desc id="desc">')[2].partition("</desc>")[0])
    lines = shown.partition("verdict\n")[2].rstrip()
    return f"{BEGIN}\n```\n{lines}\n```\n{END}"


def write_verdict() -> None:
    """Writes the verdict into the README."""
    text = README.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    README.write_text(before + verdict((PICTURES / "demo.svg").read_text()) + after)


def played(name: str, rows: int, speed: float, *words: str) -> None:
    """Records a scenario of the demo as a picture."""
    made = terminal.record([*GPUSHARE, "demo", *words])
    if made.status:
        raise RuntimeError(f"gpushare demo {' '.join(words)} ended with {made.status}:\n{made.text()}")
    where = "simulated device" if "SIMULATED" in made.text() else "NVIDIA device"
    command = " ".join(["gpushare demo", *words])
    title = f"$ {command}    ({where}, {time.strftime('%Y-%m-%d')}, {speed:g} times as fast)"
    save(name, terminal.svg(made, title, rows, speed))


def used() -> None:
    """Saves the output of `gpushare usage --format svg` for a made-up ledger."""
    save("usage.svg", usage.picture())


def seen() -> None:
    """Makes the pictures of the dashboard: in a process of its own, which imports what tests import."""
    subprocess.run([sys.executable, str(Path(__file__).with_name("dashboard.py"))], check=True)


def topped() -> None:
    """Saves the screen of `gpushare top`, from a process of its own, which imports what tests import."""
    made = subprocess.run([sys.executable, Path(__file__).with_name("top.py")], check=True, stdout=subprocess.PIPE)
    save("top.svg", made.stdout.decode())


STEPS: list[tuple[str, Callable[[], None]]] = [
    ("docs/pictures/demo.svg: gpushare demo", lambda: played("demo.svg", 26, 2)),
    ("README.md: its verdict", write_verdict),
    ("docs/pictures/demo-teams.svg: gpushare demo --scenario teams",
     lambda: played("demo-teams.svg", 22, 4, "--scenario", "teams")),
    ("docs/pictures/demo-notebooks.svg: gpushare demo --scenario notebooks",
     lambda: played("demo-notebooks.svg", 22, 3, "--scenario", "notebooks")),
    ("docs/pictures/usage.svg: gpushare usage --format svg", used),
    ("docs/pictures/top.svg: gpushare top", topped),
    ("docs/pictures/dashboard-*.png: gpushare dashboard", seen),
]  # fmt: skip


def main() -> int:
    if os.geteuid() != 0:
        print("pictures: run it as root: the demo starts containers", file=sys.stderr)
        return 2
    PICTURES.mkdir(exist_ok=True)
    steps = [one for one in STEPS if not sys.argv[1:] or any(word in one[0] for word in sys.argv[1:])]
    for number, (title, step) in enumerate(steps, 1):
        print(f"{number}/{len(steps)} {title}", flush=True)
        step()
    return 0


if __name__ == "__main__":
    sys.exit(main())
