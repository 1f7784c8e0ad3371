"""The newest result of a real GPU on the page about exactness: a block between two lines, made of what bench/results
holds."""

import json
import textwrap
from pathlib import Path

from gpubench.results import Json, incomplete, machine, newest, targets, when

BEGIN, END = "<!-- real GPU: written by bench/gpu/run from bench/results -->", "<!-- end of real GPU -->"
NONE = "No real GPU has been measured yet: every number here is from the simulated device."
PAGE = "docs/concepts/exact.md"
RESULTS = "bench/results/gpu"


def latest(results: Path) -> tuple[Path, Json] | None:
    """The result of the real GPU that was measured last."""
    found = []
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text())
        runs = document.get("runs") if isinstance(document, dict) else None
        if isinstance(runs, list) and runs and runs[-1].get("simulated") is False:
            found.append((when(runs[-1]), path, document))
    return max(found)[1:] if found else None


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)


def block(results: Path) -> str:
    """Without the lines around it."""
    if (found := latest(results)) is None:
        return NONE
    path, document = found
    best = newest(document)
    runs = [run for run, _ in best.values()] or [document["runs"][-1]]
    dates, commits, machines = (
        ", ".join(dict.fromkeys(fact(run) for run in runs))
        for fact in (lambda run: run["date"], lambda run: run["commit"], machine)
    )
    head = f"Newest run: **{runs[-1]['gpu']}**, {machines}; {dates}, at {commits}."
    lines = _prose(f"{head} [All numbers](../../{RESULTS}/{path.stem}.md).") + targets(best)
    if short := incomplete(best):
        lines += ["", *_prose(f"Not complete: {short}.")]
    return "\n".join(lines)


def replaced(text: str, new: str) -> str:
    """Raises ValueError where the two lines are not there, once each and in order."""
    before, begin, rest = text.partition(BEGIN + "\n")
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ValueError(f"{PAGE} has no block of real GPUs: a line {BEGIN!r} and a line {END!r}")
    return f"{before}{begin}{new}\n{end}{after}"


def is_stale(root: Path) -> bool:
    """Whether the page's block is not what the stored results give. Raises ValueError, OSError."""
    text = (root / PAGE).read_text()
    return replaced(text, block(root / RESULTS)) != text


def refresh(root: Path) -> bool:
    """Writes the block; returns whether it was another. Raises ValueError, OSError."""
    if not is_stale(root):
        return False
    (root / PAGE).write_text(replaced((root / PAGE).read_text(), block(root / RESULTS)))
    return True
