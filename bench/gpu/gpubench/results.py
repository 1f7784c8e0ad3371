"""The result file, written anew after every row so that nothing measured is lost, and the table made from it.

A file holds runs: one per command. The table shows each part's newest complete result and says which commit it is of.
"""

import json
import os
from itertools import groupby
from pathlib import Path
from typing import Any

from gpubench import decision, registry
from gpubench.stats import number

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
    runs = sorted((run for document in documents for run in document["runs"]), key=when)
    kinds = {(run["gpu"], run["simulated"]) for run in runs}
    if len(kinds) != 1:
        raise ValueError(f"these are runs of several kinds of GPU: {', '.join(sorted(gpu for gpu, _ in kinds))}")
    unique = {json.dumps(run, sort_keys=True): run for run in runs}
    return {"runs": list(unique.values())}


def when(run: Json) -> str:
    return str(run.get("started", run["date"]))


def decided(document: Json) -> Json | None:
    """None for a simulated device, which proves no number."""
    if document["runs"][-1]["simulated"]:
        return None
    return decision.made({name: entry["rows"] for name, (_, entry) in newest(document).items()})


def save(path: Path, document: Json) -> None:
    """With what it decides as of now."""
    document["decides"] = decided(document)
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, text in (
        (path, json.dumps(document, indent=1) + "\n"),
        (path.with_suffix(".md"), markdown(document)),
    ):
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.replace(target)


def newest(document: Json) -> dict[str, tuple[Json, Json]]:
    """Part -> (run, entry): the last that ended well, else the last with rows, else the last."""
    best: dict[str, tuple[int, int, Json, Json]] = {}
    for index, run in enumerate(document["runs"]):
        for entry in run["parts"]:
            rank = 2 if entry["state"] == "ok" else 1 if entry["rows"] else 0
            before = best.get(entry["part"])
            if before is None or (rank, index) >= before[:2]:
                best[entry["part"]] = (rank, index, run, entry)
    return {name: (run, entry) for name, (_, _, run, entry) in best.items()}


def measured(row: Json) -> str:
    text = f"{number(row['value'])} {row['unit']}".strip() if row["value"] is not None else row["text"]
    if row["low"] is not None:
        text += f" ({number(row['low'])} to {number(row['high'])}, n={row['n']})"
    return text.replace("|", "/")


def _columns(row: Json) -> tuple[str, ...]:
    """Of a row that compares several numbers of one kind; they stand below each other where rows follow that have the
    same."""
    return tuple(row["values"]) if row["value"] is None and row["unit"] else ()


def table(rows: list[Json]) -> list[str]:
    lines: list[str] = []
    for columns, group in groupby(rows, _columns):
        head = [*columns, "unit"] if columns else ["measured"]
        lines += ["", f"| number | {' | '.join(head)} | against |", f"|---|{'---|' * len(head)}---|"]
        for row in group:
            cells = [number(row["values"][key]) for key in columns] + [row["unit"]] if columns else [measured(row)]
            lines.append(
                "| " + " | ".join(text.replace("|", "/") for text in (row["name"], *cells, row["against"])) + " |"
            )
    return lines


def machine(run: Json) -> str:
    return f"{run['machine']}; driver {run['driver']}, CUDA {run['cuda']}."


def incomplete(found: dict[str, tuple[Json, Json]]) -> str:
    """Parts whose rows are not all there, and in which state each is."""
    states = {part.name: found[part.name][1]["state"] if part.name in found else "not run" for part in registry.PARTS}
    return ", ".join(f"`{name}` ({state})" for name, state in states.items() if state != "ok")


def _software(run: Json) -> list[str]:
    found = run.get("surroundings") or {}
    names = [f"Python {found['python']}"] if "python" in found else []
    names += [f"{name} {version}" for name, version in found.get("packages", {}).items()]
    return ["", f"With {', '.join(names)}."] if names else []


def _missing(document: Json, found: dict[str, tuple[Json, Json]]) -> list[str]:
    """What failed first, then what was not run or could not be measured; each with the reason."""
    runs = {id(run): run for run in (*(run for run, _ in found.values()), document["runs"][-1])}
    failed: list[str] = []
    other: list[str] = []
    for preflight in (run["preflight"] for run in runs.values() if "preflight" in run):
        if preflight["state"] == "ok":
            other += [f"- preflight: {reason}" for reason in preflight["skipped"]]
        else:
            failed.append(f"- preflight: {preflight['state']}: {preflight['reason']}")
    failed, other = list(dict.fromkeys(failed)), list(dict.fromkeys(other))
    for part in registry.PARTS:
        if part.name not in found:
            other.append(f"- `{part.name}`: not run")
            continue
        entry = found[part.name][1]
        if entry["state"] not in ("ok", "incomplete"):  # of an incomplete one the failures follow
            (other if entry["state"] in ("skipped", "not run") else failed).append(
                f"- `{part.name}`: {entry['state']}: {entry['reason']}"
            )
        failed += [f"- `{part.name}`: {failure}" for failure in entry.get("broken", [])]
        other += [f"- `{part.name}`: {reason}" for reason in entry["skipped"] if reason != entry["reason"]]
    lines = ["", "## Failed", "", *failed] if failed else []
    return lines + (["", "## Not measured", "", *other] if other else [])


def markdown(document: Json) -> str:
    last = document["runs"][-1]
    title = f"# {last['gpu']}, {last['date']}" + (" (SIMULATED: no real GPU was measured)" if last["simulated"] else "")
    one_machine = len({machine(run) for run in document["runs"]}) == 1
    lines = [title, "", machine(last) if one_machine else "Several machines: each part says which.", ""]
    lines += ["Numbers in brackets are the lowest and the highest of n.", *_software(last)]
    found = newest(document)
    if short := incomplete(found):
        lines += ["", f"Not complete, the end says why: {short}."]
    if (decides := document.get("decides")) is not None:
        lines += decision.lines(decides)
    for part in registry.PARTS:
        if part.name not in found or not found[part.name][1]["rows"]:
            continue
        run, entry = found[part.name]
        where = "" if one_machine else f" {machine(run)}"
        note = (
            ""
            if entry["state"] == "ok"
            else f" **Incomplete{'' if entry['state'] == 'incomplete' else ': ' + entry['state']}.**"
        )
        lines += ["", f"## {part.title}", ""]
        lines += [f"`{part.name}` at {run['commit']}, {run['date']}: `{run['command']}`.{note}{where}"]
        lines += ["", part.note] if part.note else []
        lines += table(entry["rows"])
    lines += _missing(document, found)
    lines += ["", "## Not built", "", *(f"- {line}" for line in registry.NOT_BUILT)]
    return "\n".join(lines) + "\n"
