"""The table on the terminal and the result files."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import picture

from duelbench.evasions import Evasion
from duelbench.judge import SHARE, WAITED, Round, Verdict

Json = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    evasion: Evasion
    rounds: Sequence[Round]
    verdict: Verdict

    @property
    def note(self) -> str:
        """Of what must be known to believe the number."""
        crowded = any(one.crowded for one in self.rounds)
        waited = max((one.waited for one in self.rounds), default=0.0)
        starved = f"the honest one waited {100 * waited:.0f} % for a processor" if waited >= WAITED else ""
        parts = [self.verdict.more, f"{len(self.rounds)} rounds" if len(self.rounds) > 1 else ""]
        return "; ".join(filter(None, [*parts, "machine full" if crowded else "", starved]))

    def row(self) -> Json:
        return {
            "name": self.evasion.name,
            "kind": self.evasion.kind,
            "about": self.evasion.about,
            "state": self.verdict.state,
            "measured": self.verdict.measured,
            "note": self.note,
            "open": self.evasion.open,
            "rounds": [one.row() for one in self.rounds],
        }


def line(outcome: Outcome) -> str:
    name, verdict = outcome.evasion.name, outcome.verdict
    return f"{name:24} {verdict.state:7} {verdict.measured:>14}  {outcome.note}"


def summary(outcomes: Sequence[Outcome]) -> str:
    states = [outcome.verdict.state for outcome in outcomes]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return f"{len(outcomes)} duels: {counts}"


def markdown(facts: Json, outcomes: Sequence[Outcome]) -> list[str]:
    lines = [
        f"# Duels, simulated GPU, {facts['date']}",
        "",
        f"{facts['machine']}; `{facts['command']}` at {facts['commit']}, {facts['minutes']:.0f} minutes.",
        "",
        f"Each evasion is a tenant of 25 % against an honest one of 75 %, which must get at least {100 * SHARE:.0f} % "
        "of the device time that both used; one of memory must never hold a byte more than its limit. All numbers are "
        f"the simulator's books. {summary(outcomes)}.",
        "",
        "| evasion | what it tries | honest share, or bytes over the limit | | |",
        "|---|---|---|---|---|",
    ]
    for one in outcomes:
        lines.append(
            f"| {one.evasion.name} | {one.evasion.about} | {one.verdict.measured} | {one.verdict.state} | {one.note} |"
        )
    known = [one for one in outcomes if one.evasion.open]
    if known:
        lines += ["", "Nothing holds these, and SECURITY.md says so:", ""]
        lines += [f"- {one.evasion.name}: {one.evasion.open}" for one in known]
    return lines


_FILLS = {"held": picture.GOOD, "weak": 3, "open": picture.GREY, "won": picture.BAD, "broken": 6}


def svg(document: Json) -> str:
    """The duels of a stored run: shares of the device, then memory, each against what it must be."""
    duels = document["duels"]
    told = "; ".join(f"{one['name']}: {one['measured']}, {one['state']}" for one in duels)
    canvas = picture.headline(document, f"{len(duels)} evasions against an honest tenant of 75 %", told)
    states = {one["state"] for one in duels}
    picture.legend(canvas, 72, {state: fill for state, fill in _FILLS.items() if state in states}, 90)
    memory = [one for one in duels if one["kind"] == "memory"]
    time = [one for one in duels if one["kind"] != "memory"]
    canvas.text(picture.MARGIN, 110, "what the honest tenant got of what both used", "ink b")
    y = picture.bars(canvas, 110, [*map(_bar, time)], SHARE, f"at least {100 * SHARE:.0f} %", beside=180)
    canvas.text(picture.MARGIN, y + 40, "the most that was held, of the limit", "ink b")
    return canvas.svg(picture.bars(canvas, y + 40, [*map(_bar, memory)], 1, "its limit", beside=180) + picture.MARGIN)


def _bar(duel: Json) -> picture.Bar:
    parts = [one["peak_bytes"] / one["limit_bytes"] for one in duel["rounds"] if one["limit_bytes"]]
    percent = re.match(r"[\d.]+(?= %)", duel["measured"])
    part = max(parts) if parts else float(percent[0]) / 100 if percent else None
    said = f"{100 * part:.1f} %  {duel['state']}" if part is not None else duel["state"]
    return picture.Bar(duel["name"], said, part, _FILLS[duel["state"]], duel["state"] not in ("held", "weak"))


def write(directory: Path, facts: Json, outcomes: Sequence[Outcome]) -> Path:
    """The table's path."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"duel-simulated-{facts['date']}"
    document = {"device": "simulated", **facts, "duels": [one.row() for one in outcomes]}
    stem.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    stem.with_suffix(".md").write_text("\n".join(markdown(facts, outcomes)) + "\n")
    stem.with_suffix(".svg").write_text(svg(document))
    return stem.with_suffix(".md")
