"""The result file, written anew after every row so that nothing measured is lost, and the table made from it.

A file holds runs: one per command. The table shows each group's newest complete result and the commit that it is of.
"""

import json
import os
from pathlib import Path
from typing import Any

from gpubench.groups import GROUPS, Group
from gpubench.stats import number

Json = dict[str, Any]
Newest = dict[str, tuple[Json, Json]]  # group -> (run, entry)
_TAIL_LINES = 300


class Results:
    def __init__(self, path: Path, facts: Json, command: str) -> None:
        self.path = path
        self.document: Json = json.loads(path.read_text()) if path.exists() else {"runs": []}
        self.run: Json = {**facts, "command": command, "groups": []}
        self.document["runs"].append(self.run)

    def begin(self, group: Group) -> Json:
        lists: Json = {"rows": [], "skipped": [], "broken": []}
        self.run["groups"].append({"group": group.name, "state": "running", "reason": "", "seconds": 0.0, **lists})
        self.write()
        entry: Json = self.run["groups"][-1]
        return entry

    def write(self) -> None:
        save(self.path, self.document)


def keep_logs(work: Path, target: Path) -> None:
    """The ends of a run's logs, for a machine that is gone afterwards."""
    lines: list[str] = []
    for log in sorted(work.glob("*.log")):
        lines += [f"==> {log.name} <==", *log.read_text(errors="replace").splitlines()[-_TAIL_LINES:], ""]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines))


def when(run: Json) -> str:
    return str(run.get("started", run["date"]))


def merged(documents: list[Json]) -> Json:
    """All runs, oldest first. Raises ValueError when they are not of one kind of GPU."""
    runs = sorted((run for document in documents for run in document["runs"]), key=when)
    kinds = {(run["gpu"], run["simulated"]) for run in runs}
    if len(kinds) != 1:
        raise ValueError(f"these are runs of several kinds of GPU: {', '.join(sorted(gpu for gpu, _ in kinds))}")
    unique = {json.dumps(run, sort_keys=True): run for run in runs}
    return {"runs": list(unique.values())}


def save(path: Path, document: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, text in ((path, json.dumps(document, indent=1) + "\n"), (path.with_suffix(".md"), markdown(document))):
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.replace(target)


def newest(document: Json) -> Newest:
    """Of each group the last entry that ended well, else the last with rows, else the last."""
    best: dict[str, tuple[int, int, Json, Json]] = {}
    for index, run in enumerate(document["runs"]):
        for entry in run["groups"]:
            rank = 2 if entry["state"] == "ok" else 1 if entry["rows"] else 0
            before = best.get(entry["group"])
            if before is None or (rank, index) >= before[:2]:
                best[entry["group"]] = (rank, index, run, entry)
    return {name: (run, entry) for name, (_, _, run, entry) in best.items()}


def machine(run: Json) -> str:
    return f"{run['machine']}; driver {run['driver']}, CUDA {run['cuda']}"


def cells(*texts: str) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"


def _measured(row: Json) -> str:
    text = f"{number(row['value'])} {row['unit']}".strip() if row["value"] is not None else row["text"]
    if row["low"] is not None:
        text += f" ({number(row['low'])} to {number(row['high'])}, n={row['n']})"
    return str(text)


def target(row: Json) -> str:
    if row["limit"] is None:
        return ""
    held = "met" if row["judged"] <= row["limit"] else f"MISSED: {number(row['judged'])}"
    return f"<= {number(row['limit'])}: {held}"


def table(rows: list[Json]) -> list[str]:
    lines = ["", "| number | measured | target | against |", "|---|---|---|---|"]
    return lines + [cells(row["name"], _measured(row), target(row), row["against"]) for row in rows]


def targets(found: Newest) -> list[str]:
    """Of each group with targets: how many are met, and the row that is closest to its bound or farthest beyond it."""
    lines = [
        "",
        "| group | targets met | the closest, or the worst missed | measured | target |",
        "|---|---|---|---|---|",
    ]
    for group in GROUPS:
        rows = [row for row in found[group.name][1]["rows"] if row["limit"] is not None] if group.name in found else []
        if rows:
            worst = max(rows, key=lambda row: row["judged"] / row["limit"] if row["limit"] else row["judged"] + 0.5)
            met = sum(row["judged"] <= row["limit"] for row in rows)
            lines.append(cells(group.name, f"{met} of {len(rows)}", worst["name"], _measured(worst), target(worst)))
    return lines if len(lines) > 3 else []


def incomplete(found: Newest) -> str:
    """Groups whose rows are not all there, and in which state each is."""
    states = {group.name: found[group.name][1]["state"] if group.name in found else "not run" for group in GROUPS}
    return ", ".join(f"`{name}` ({state})" for name, state in states.items() if state != "ok")


def _missing(found: Newest) -> list[str]:
    """What failed, was not run or could not be measured, each with the reason."""
    lines = []
    for name, (_, entry) in found.items():
        if entry["state"] not in ("ok", "incomplete"):  # of an incomplete one the failures follow
            lines.append(f"- `{name}`: {entry['state']}: {entry['reason']}")
        lines += [f"- `{name}`: failed: {failure}" for failure in entry["broken"]]
        lines += [f"- `{name}`: {reason}" for reason in entry["skipped"] if reason != entry["reason"]]
    return ["", "## Failed or not measured", "", *lines] if lines else []


def markdown(document: Json) -> str:
    last, found = document["runs"][-1], newest(document)
    mark = " (SIMULATED: no real GPU was measured)" if last["simulated"] else ""
    several = len({machine(run) for run in document["runs"]}) > 1
    software = [f"Python {last['python']}", *(f"{name} {version}" for name, version in last["packages"].items())]
    lines = [f"# {last['gpu']}, {last['date']}{mark}", ""]
    lines += ["Several machines: see each group." if several else f"{machine(last)}; {', '.join(software)}.", ""]
    lines += ["Numbers in brackets are the lowest and the highest of n."]
    if short := incomplete(found):
        lines += ["", f"Not complete, for reasons at the end: {short}."]
    lines += targets(found)
    for group in GROUPS:
        if group.name not in found or not found[group.name][1]["rows"]:
            continue
        run, entry = found[group.name]
        where = f" {machine(run)}." if several else ""
        note = "" if entry["state"] == "ok" else f" **{entry['state'].capitalize()}.**"
        lines += ["", f"## {group.title}", ""]
        lines += [f"`{group.name}` at {run['commit']}, {run['date']}: `{run['command']}`.{where}{note}"]
        lines += table(entry["rows"])
    return "\n".join(lines + _missing(found)) + "\n"
