"""The newest result of a real GPU in README.md and in bench/README.md: a block between two lines, made of what
bench/results holds."""

import json
from pathlib import Path

from gpubench.results import Json, incomplete, machine, newest, targets, when

BEGIN, END = "<!-- real GPU: written by bench/gpu/run from bench/results -->", "<!-- end of real GPU -->"
NONE = "No real GPU has been measured yet: every number here is from the simulated device."
FILES = ("README.md", "bench/README.md")


def latest(results: Path) -> tuple[Path, Json] | None:
    """The result of the real GPU that was measured last."""
    found = []
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text())
        runs = document.get("runs") if isinstance(document, dict) else None
        if isinstance(runs, list) and runs and runs[-1].get("simulated") is False:
            found.append((when(runs[-1]), path, document))
    return max(found)[1:] if found else None


def block(name: str, results: Path) -> str:
    """For this file of the checkout, without the lines around it."""
    if (found := latest(results)) is None:
        return NONE
    path, document = found
    link = f"{'bench/results/gpu' if name == 'README.md' else 'results/gpu'}/{path.stem}.md"
    best = newest(document)
    runs = [run for run, _ in best.values()] or [document["runs"][-1]]
    dates, commits, machines = (
        ", ".join(dict.fromkeys(fact(run) for run in runs))
        for fact in (lambda run: run["date"], lambda run: run["commit"], machine)
    )
    lines = [f"On a real GPU: **{runs[-1]['gpu']}**, {machines}; {dates}, at {commits}. [All numbers]({link})."]
    lines += targets(best)
    if short := incomplete(best):
        lines += ["", f"Not complete: {short}."]
    return "\n".join(lines)


def replaced(text: str, new: str) -> str:
    """Raises ValueError where the two lines are not there, once each and in order."""
    before, begin, rest = text.partition(BEGIN + "\n")
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ValueError(f"has no block of real GPUs: a line {BEGIN!r} and a line {END!r}")
    return f"{before}{begin}{new}\n{end}{after}"


def stale(root: Path) -> dict[Path, str]:
    """Files whose block is not what the stored results give -> what they should hold. Raises ValueError."""
    found = {}
    for name in FILES:
        text = (root / name).read_text()
        try:
            new = replaced(text, block(name, root / "bench" / "results" / "gpu"))
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
        if new != text:
            found[root / name] = new
    return found


def refresh(root: Path) -> list[str]:
    """Names of the files that were rewritten. Raises ValueError, OSError."""
    changed = stale(root)
    for path, text in changed.items():
        path.write_text(text)
    return [path.relative_to(root).as_posix() for path in changed]
