"""The newest result of a real GPU in README.md and in bench/README.md: a block between two lines, made of what
bench/results holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gpubench import decision
from gpubench.results import Json, decided, incomplete, machine, measured, newest, when

BEGIN, END = "<!-- real GPU: written by bench/gpu/run from bench/results -->", "<!-- end of real GPU -->"
NONE = "No real GPU has been measured yet: every number here is from the simulated device."

# What matters of each part, by names of rows; one that was not measured is left out.
ROWS = (
    ("shares", r".*, 25/75, gpushare: (share error over 10 s|work of both)"),
    ("reclaim", r"owner's wake to the end of its first kernel beside (20 ms kernels|a graph of 200 ms), p99"),
    ("overhead", r"(5|100) us kernels, gpushare"),
    ("frameworks", r"(transformer training step|decode step, CUDA graph), gpushare"),
    ("protection", r"inference beside (5 ms kernels|PyTorch training), p99"),
    ("metering", r"(100 us|20 ms) kernels.*: busy time against CUDA events"),
    ("clients", r"clients caught by gpushare"),
)


def latest(results: Path) -> tuple[Path, Json] | None:
    """The real GPU's that was measured last. Other benchmarks keep theirs in the same directory."""
    found = []
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text())
        runs = document.get("runs") if isinstance(document, dict) else None
        if isinstance(runs, list) and runs and runs[-1].get("simulated") is False and "parts" in runs[-1]:
            found.append((when(runs[-1]), path, document))
    return max(found)[1:] if found else None


def _facts(document: Json, link: str) -> str:
    runs = [run for run, _ in newest(document).values()] or [document["runs"][-1]]
    dates, commits, machines = (
        ", ".join(dict.fromkeys(made(run) for run in runs))
        for made in (lambda run: run["date"], lambda run: run["commit"], lambda run: machine(run).rstrip("."))
    )
    return f"On a real GPU: **{runs[-1]['gpu']}**, {machines}; {dates}, at {commits}. [All that was measured]({link})."


def _table(document: Json) -> list[str]:
    found = newest(document)
    lines = [
        f"| {part} | {row['name']} | {measured(row)} | {row['against'].replace('|', '/')} |"
        for part, pattern in ROWS
        if part in found
        for row in found[part][1]["rows"]
        if re.fullmatch(pattern, row["name"])
    ]
    return ["", "| part | number | measured | against |", "|---|---|---|---|", *lines] if lines else []


def block(name: str, results: Path) -> str:
    """For this file of the checkout, without the lines around it."""
    if (found := latest(results)) is None:
        return NONE
    path, document = found
    directory = "bench/results" if name == "README.md" else "results"
    lines = [_facts(document, f"{directory}/{path.stem}.md"), *_table(document)]
    if short := incomplete(newest(document)):
        lines += ["", f"Not complete: {short}."]
    decides = decided(document)
    if name != "README.md" and decides is not None:
        lines += decision.lines(decides, "###")
    return "\n".join(lines)


def replaced(text: str, new: str) -> str:
    """Raises ValueError where the two lines are not there, once each and in order."""
    before, begin, rest = text.partition(BEGIN + "\n")
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ValueError(f"has no block of real GPUs: a line {BEGIN!r} and a line {END!r}")
    return f"{before}{begin}{new}\n{end}{after}"


FILES = ("README.md", "bench/README.md")


def stale(root: Path) -> dict[Path, str]:
    """Files whose block is not what the stored results give -> what they should hold. Raises ValueError."""
    found = {}
    for name in FILES:
        text = (root / name).read_text()
        try:
            new = replaced(text, block(name, root / "bench" / "results"))
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
