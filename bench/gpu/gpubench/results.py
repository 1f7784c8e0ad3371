"""The result file, written anew after every row so that nothing measured is lost, and the table made from it.

A file holds runs: one per command. The table shows each part's newest complete result and says which commit it is of.
"""

import json
import os
from pathlib import Path
from typing import Any

from gpubench import registry

Json = dict[str, Any]
_TAIL_LINES = 300


def _fresh(part: registry.Part) -> Json:
    return {
        "part": part.name,
        "state": "running",
        "reason": "",
        "seconds": 0.0,
        "rows": [],
        "skipped": [],
        "broken": [],
    }


class Results:
    def __init__(self, path: Path, facts: Json, command: str) -> None:
        self.path = path
        self.document: Json = json.loads(path.read_text()) if path.exists() else {"runs": []}
        self.run: Json = {**facts, "command": command, "parts": []}
        self.document["runs"].append(self.run)

    def begin(self, part: registry.Part) -> Json:
        entry = _fresh(part)
        self.run["parts"].append(entry)
        self.write()
        return entry

    def preflight(self) -> Json:
        self.run["preflight"] = _fresh(registry.PREFLIGHT)
        found: Json = self.run["preflight"]
        return found

    def write(self) -> None:
        save(self.path, self.document)


def keep_logs(work: Path, target: Path) -> None:
    """The ends of a run's logs, for a machine that is gone afterwards."""
    lines: list[str] = []
    for log in sorted(work.glob("*.log")):
        lines += [f"==> {log.name} <==", *log.read_text(errors="replace").splitlines()[-_TAIL_LINES:], ""]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines))


def merged(documents: list[Json]) -> Json:
    """All runs, oldest first. Raises ValueError when they are not of one kind of GPU."""
    runs = sorted((run for document in documents for run in document["runs"]), key=_when)
    kinds = {(run["gpu"], run["simulated"]) for run in runs}
    if len(kinds) != 1:
        raise ValueError(f"these are runs of several kinds of GPU: {', '.join(sorted(gpu for gpu, _ in kinds))}")
    unique = {json.dumps(run, sort_keys=True): run for run in runs}
    return {"runs": list(unique.values())}


def _when(run: Json) -> str:
    return str(run.get("started", run["date"]))


def save(path: Path, document: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, text in (
        (path, json.dumps(document, indent=1) + "\n"),
        (path.with_suffix(".md"), markdown(document)),
    ):
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.replace(target)


def _newest(document: Json) -> dict[str, tuple[Json, Json]]:
    """Part -> (run, entry): the last that ended well, else the last with rows, else the last."""
    best: dict[str, tuple[int, int, Json, Json]] = {}
    for index, run in enumerate(document["runs"]):
        for entry in run["parts"]:
            rank = 2 if entry["state"] == "ok" else 1 if entry["rows"] else 0
            before = best.get(entry["part"])
            if before is None or (rank, index) >= before[:2]:
                best[entry["part"]] = (rank, index, run, entry)
    return {name: (run, entry) for name, (_, _, run, entry) in best.items()}


def number(value: float) -> str:
    """Three digits that say something; whole numbers of four and more stay whole."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _measured(row: Json) -> str:
    text = f"{number(row['value'])} {row['unit']}".strip() if row["value"] is not None else row["text"]
    if row["low"] is not None:
        text += f" ({number(row['low'])} to {number(row['high'])}, n={row['n']})"
    return text


def _table(entry: Json) -> list[str]:
    lines = ["", "| number | measured | against |", "|---|---|---|"]
    for row in entry["rows"]:
        against = row["against"].replace("|", "/")
        lines.append(f"| {row['name'].replace('|', '/')} | {_measured(row)} | {against} |")
    return lines


def _machine(run: Json) -> str:
    return f"{run['machine']}; driver {run['driver']}, CUDA {run['cuda']}."


def markdown(document: Json) -> str:
    last = document["runs"][-1]
    title = f"# {last['gpu']}, {last['date']}" + (" (SIMULATED: no real GPU was measured)" if last["simulated"] else "")
    one_machine = len({_machine(run) for run in document["runs"]}) == 1
    lines = [title, "", _machine(last) if one_machine else "Several machines: each part says which.", ""]
    lines += ["Numbers in brackets are the lowest and the highest of n."]
    newest = _newest(document)
    preflight = last.get("preflight", {"state": "ok"})
    missing = [] if preflight["state"] == "ok" else [f"- preflight: {preflight['state']}: {preflight['reason']}"]
    for part in registry.PARTS:
        if part.name not in newest:
            missing.append(f"- `{part.name}`: not run")
            continue
        run, entry = newest[part.name]
        for reason in entry["skipped"]:
            missing.append(f"- `{part.name}`: {reason}")
        for failure in entry.get("broken", []):
            missing.append(f"- `{part.name}`: {failure}")
        if entry["state"] != "ok":
            missing.append(f"- `{part.name}`: {entry['state']}: {entry['reason']}")
        if not entry["rows"]:
            continue
        where = "" if one_machine else f" {_machine(run)}"
        note = "" if entry["state"] == "ok" else f" **Incomplete: {entry['state']}.**"
        lines += [
            "",
            f"## {part.title}",
            "",
            f"`{part.name}` at {run['commit']}, {run['date']}: `{run['command']}`.{note}{where}",
        ]
        lines += _table(entry)
    if missing:
        lines += ["", "## Not measured", "", *missing]
    lines += ["", "## Not built", "", *(f"- {line}" for line in registry.NOT_BUILT)]
    return "\n".join(lines) + "\n"
