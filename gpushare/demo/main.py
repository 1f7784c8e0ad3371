"""Plays a scenario and reports the result."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpushare.demo import screen
from gpushare.demo.notebooks import show as notebooks_show
from gpushare.demo.notebooks.script import Device
from gpushare.demo.notebooks.story import Story as NotebooksStory
from gpushare.demo.notebooks.verdict import claims as notebooks_claims
from gpushare.demo.stage import stage
from gpushare.demo.story import BORROWER, OWNER, Story
from gpushare.demo.teams import show
from gpushare.demo.teams.script import ACTS, DEVICES
from gpushare.demo.teams.story import Story as TeamsStory
from gpushare.demo.verdict import Claim, claims
from gpushare.errors import FailedError
from gpushare.paths import HOOK, INTERPOSERS, LIB_DIR, RUNTIME_WRAPPER

CONTAINERS_SECONDS = 5.0
TEAMS_SECONDS = 2.0
NOTEBOOKS_SECONDS = 3.0
NOTEBOOKS_DEVICE = Device()
_PROGRAM = LIB_DIR / "gpushare-spin"

Result = tuple[dict[str, Any], list[Claim]]
"""(the whole result for `--json`, claims)"""


def containers(phase_seconds: float | None, *, quiet: bool) -> Result:
    """Two containers on one device. Leaves nothing behind, however it ends. Raises GpushareError."""
    _check(*INTERPOSERS, HOOK, RUNTIME_WRAPPER, _PROGRAM)
    if os.geteuid() != 0:
        raise FailedError("the demo starts containers: run it as root")
    if shutil.which("runc") is None:
        raise FailedError("runc is not installed: apt-get install runc")
    table = screen.Screen((OWNER, BORROWER))
    say = _silence if quiet else screen.step
    with stage(say) as (node, where, facts):
        found = node.client.devices()[0]
        device = {"name": found["name"], "uuid": found["id"], "simulated": facts["simulated"]}
        if not quiet:
            table.begin({"device": device})
        story = Story(node, where, phase_seconds or CONTAINERS_SECONDS, say, _silence if quiet else table.watch)
        played = story.play(facts["simulated"])
    return screen.as_json(device, played, claims(played)), claims(played)


def teams(phase_seconds: float | None, *, quiet: bool) -> Result:
    """Teams with quotas on eight simulated devices; otherwise as `containers`."""
    _check(*INTERPOSERS, _PROGRAM)
    say = _silence if quiet else screen.step
    with stage(say, f"{DEVICES}x16GiB") as (node, where, _):
        if not quiet:
            show.begin(DEVICES)
        story = TeamsStory(node, where, phase_seconds or TEAMS_SECONDS, say, None if quiet else show.Screen())
        outcomes = story.play(ACTS)
    found = show.claims(outcomes)
    return show.as_json(outcomes, found), found


def notebooks(phase_seconds: float | None, *, quiet: bool) -> Result:
    """Notebooks that lend their idle memory, on one simulated device; otherwise as `containers`."""
    _check(*INTERPOSERS, LIB_DIR / "spin.ptx", LIB_DIR / "words.ptx")
    device = NOTEBOOKS_DEVICE
    view = None if quiet else notebooks_show.Screen(device)
    with stage(_silence if quiet else screen.step, f"1x{device.size}", device.model) as (node, where, _):
        if view is not None:
            view.begin()
        facts = NotebooksStory(node, where, device, phase_seconds or NOTEBOOKS_SECONDS, view).play()
    found = notebooks_claims(facts)
    return notebooks_show.as_json(facts, found), found


SCENARIOS: dict[str, Callable[..., Result]] = {"containers": containers, "teams": teams, "notebooks": notebooks}


def _silence(_: Any) -> None:
    """Replaces the screen for JSON output."""


def _check(*built: Path) -> None:
    for path in built:
        if not path.exists():
            raise FailedError(f"{path} is not built: make demo builds it")
