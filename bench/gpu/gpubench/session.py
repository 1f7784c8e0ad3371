"""The parts of one run, in turn: what each may take, and why one is not run at all."""

from dataclasses import dataclass
from pathlib import Path

from gpubench import isolate, registry
from gpubench.deadline import Deadline
from gpubench.results import Json, Results
from gpubench.worker import say

_LEAST_SECONDS = 20  # a part begun with less left would measure nothing


@dataclass
class Session:
    """`limit`: of each part, instead of its own. `arms`: gpushare and its peers."""

    config: Path
    environment: dict[str, str]
    results: Results
    deadline: Deadline
    limit: float | None
    arms: int
    simulated: bool
    without: str = ""
    """Why there is no gpushare."""
    unfit: bool | None = None
    """gpushare can share nothing here; None: not yet tried."""

    def part(self, part: registry.Part) -> bool:
        """Whether it ended well, or is one that was not to be run."""
        entry = self.results.begin(part)
        if part.real and self.simulated:
            entry["state"], entry["reason"] = "skipped", "needs a real GPU"
            self.results.write()
            return True
        if part.shares and self._unfit():
            entry["state"], entry["reason"] = "not run", "gpushare shares nothing here, see preflight"
            self.results.write()
            return False
        self._run(part, entry, self.limit or part.seconds * (self.arms if part.peers else 1))
        return bool(entry["state"] == "ok")

    def _unfit(self) -> bool:
        if self.unfit is None:
            entry = self.results.preflight()
            if self.without:
                entry["state"], entry["reason"] = "not run", self.without
            else:
                self._run(registry.PREFLIGHT, entry, registry.PREFLIGHT.seconds)
            self.unfit = entry["state"] != "ok"
        return self.unfit

    def _run(self, part: registry.Part, entry: Json, wanted: float) -> None:
        limit = self.deadline.least(wanted, after=isolate.END_SECONDS)
        if limit < min(wanted, _LEAST_SECONDS):
            entry["state"], entry["reason"] = "not run", "of the time for everything, too little was left"
            self.results.write()
        else:
            say(f"{part.title} (`{part.name}`, at most {limit:.0f} s)")
            isolate.run(part, self.config, self.environment, limit, entry, self.results.write)
        if entry["state"] != "ok":
            say(f"  {entry['state']}: {entry['reason']}")
