"""Two honest tenants next to a hostile one, a hostile member of group gpushare and hostile images; and the judge of
what the honest ones get, by the simulator and the clock, not by gpushare's own figures.

A seed determines a plan. Each attack has its own seed, so that a step does the same whatever came before.
"""

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostile import image as hostileimage
from hostile import program as hostile
from run.running import SPIN, Tenant
from run.waiting import until

from gpushare.errors import GpushareError

LIMIT, HONEST = 2 << 30, {"40%": 400, "30%": 300}
PATIENCE_S = 20.0  # for anything that must end, on a busy machine
LATE_S = 5  # a killed daemon loses what its loop has not counted yet; it counts once a second, later if delayed
RARE = {"shorter": 0.15, "fill": 0.3, "hang_up": 0.5, "modes": 0.5}
"""Weights of attacks; others have 1. These end the grant, or undo what others have built up."""


class Actor:
    """A hostile.py process."""

    def __init__(self, role: str, socket_path: Path, nice: int) -> None:
        self.process = subprocess.Popen(
            ["nice", "-n", str(nice), sys.executable, hostile.__file__, role, str(socket_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd="/",
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        self.grant: str | None = json.loads(first)["grant"] if first else None

    def do(self, attack: str, seed: int, scale: int) -> str | None:
        """Why the attack could not be done, empty if it was; None if its grant was killed meanwhile."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"attack": attack, "seed": seed, "scale": scale}) + "\n")
        except BrokenPipeError:
            return None
        if not select.select([self.process.stdout], [], [], 3 * PATIENCE_S)[0]:
            raise AssertionError(f"{attack} with seed {seed} does not end")
        line = self.process.stdout.readline()
        return (json.loads(line)["error"] or "") if line else None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]


class House:
    """`slowest`: seconds of the slowest answer to the judge. `done`: attacks tried, by name; `failed`: those that could
    not be done."""

    def __init__(self, daemon: Any, directory: Path, nice: int = 0) -> None:
        """`nice`: of the hostile programs; control groups share processors, gpushare does not."""
        self.daemon, self.directory, self.nice = daemon, directory, nice
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.took: dict[str, float] = defaultdict(float)  # seconds
        self.reasons: dict[str, str] = {}
        self.slowest, self.starts, self.refusals = 0.0, 0, 0
        self.open_to_members()
        self.honest = [Tenant(daemon.run("2GiB", share, SPIN, gpu="0")) for share in HONEST]
        self.grants = [self.grant_of(tenant.pid) for tenant in self.honest]
        for tenant in self.honest:
            assert tenant.tell("alloc 256MiB")["ok"]
            tenant.tell("run 2000000 60")
        self.began = time.monotonic()
        self.lost = [0, 0]
        self.actors = {role: Actor(role, daemon.layout.socket, nice) for role in hostile.UIDS}
        self.menus = {role: sorted(hostile.menus(role)) for role in hostile.UIDS}

    def open_to_members(self) -> None:
        os.chown(self.daemon.layout.socket, 0, hostile.GID)
        self.daemon.layout.socket.chmod(0o660)

    def grant_of(self, pid: int) -> str:
        def found() -> Any:
            return next((one["id"] for one in self.daemon.client.grants() if pid in one["processes"]), None)

        return str(until(found, "it has joined its grant"))

    # Steps.

    def plan(self, seed: int, steps: int) -> Iterator[tuple[str, str, int]]:
        """The actor, attack and seed of each step."""
        pick = random.Random(seed)
        table = [("tenant", attack) for attack in self.menus["tenant"]]
        table += [("member", attack) for attack in self.menus["member"]]
        table += [("image", image) for image in sorted(hostileimage.MENU)]
        weights = [RARE.get(attack, 1.0) for _, attack in table]
        for who, attack in pick.choices(table, weights, k=steps):
            yield who, attack, pick.getrandbits(32)

    def step(self, who: str, attack: str, seed: int, scale: int) -> None:
        name = f"{who}.{attack}"
        self.done[name] += 1
        began = time.monotonic()
        self.attack(who, attack, seed, scale)
        self.took[name] += time.monotonic() - began

    def attack(self, who: str, attack: str, seed: int, scale: int) -> None:
        name = f"{who}.{attack}"
        if who == "image":
            self.image(attack, seed)
            return
        error = self.actors[who].do(attack, seed, scale)
        if error:
            self.failed[name] += 1
            self.reasons[name] = error
        if error is None:  # its grant was ended for the attack, and its processes with it
            # SIGBUS: it read a page that it truncated itself.
            status = self.actors[who].process.wait(PATIENCE_S)
            assert status in (-signal.SIGKILL, -signal.SIGBUS), f"{name} {seed}: it failed by itself, with {status}"
            assert who == "tenant", "nobody ends a member"
            self.actors[who].end()
            self.renew()

    def renew(self) -> None:
        """Starts the hostile tenant again, in another grant."""
        for _ in range(50):
            self.actors["tenant"] = actor = Actor("tenant", self.daemon.layout.socket, self.nice)
            if actor.grant is not None:
                return
            actor.end()
            time.sleep(0.05)
        raise AssertionError("an honest request for what is free is refused")

    def image(self, kind: str, seed: int) -> None:
        pick, bundle = random.Random(seed), self.directory / f"bundle-{sum(self.done.values())}"
        (bundle / "rootfs/etc").mkdir(parents=True)
        hostileimage.MENU[kind](bundle / "rootfs/etc", pick)
        try:
            body = {"bundle": str(bundle), "config": hostileimage.config(pick)}
            answer = self.daemon.client.call("POST", "/v1/oci/edit", body)
            if grant := answer.get("grant"):
                self.daemon.client.release(grant)
        except GpushareError as refused:
            assert refused.__class__.__name__ != "UnreachableError", refused
            self.refusals += 1
        subprocess.run(["rm", "-rf", bundle], check=True)

    def kill_daemon(self) -> float:
        """Kills the daemon with SIGKILL and starts it again; returns the seconds that the start took."""
        self.daemon.kill()
        began = time.monotonic()
        self.daemon.start()
        self.starts += 1
        taken = time.monotonic() - began
        self.open_to_members()
        for tenant, grant in zip(self.honest, self.grants, strict=True):
            until(lambda tenant=tenant, grant=grant: tenant.pid in self.grant(grant)["processes"], "it is adopted")
        self.lose(taken)
        return taken

    def lose(self, start_s: float) -> None:
        """Asserts that a kill of the daemon cost the ledger no more than each grant's last seconds and the start."""
        notified = [self.grant(grant)["devices"][0]["busy_ns"] for grant in self.grants]
        now = [did - one for did, one in zip(self.busy(), notified, strict=True)]
        for lost, before in zip(now, self.lost, strict=True):
            assert -1e9 < lost - before < (LATE_S + 1 + start_s) * 1.1e9 + 1e9, (now, self.lost)
        self.lost = now

    # The judge.

    def grant(self, grant_id: str) -> dict[str, Any]:
        return dict(self.daemon.client.grant(grant_id))

    def check(self) -> None:
        """Asserts what must hold at any moment."""
        assert self.daemon.process.poll() is None, self.daemon.log.read_text()[-3000:]
        began = time.monotonic()
        self.daemon.client.version()
        shown = {grant["id"]: grant for grant in self.daemon.client.grants()}
        self.slowest = max(self.slowest, time.monotonic() - began)
        for tenant, grant in zip(self.honest, self.grants, strict=True):
            assert tenant.process.poll() is None, "an honest process has ended"
            assert tenant.pid in shown[grant]["processes"]
            assert shown[grant]["phase"] == "active"
        elapsed = (time.monotonic() - self.began + 60) * 1e9
        for grant in shown.values():
            for device in grant["devices"]:
                numbers = {name: value for name, value in device.items() if isinstance(value, int)}
                assert all(value >= 0 for value in numbers.values()), (grant["id"], numbers)
                assert max(device[name] for name in ("busy_ns", "leased_ns")) <= elapsed, device

    def memory(self) -> None:
        """Asserts that each honest tenant never got more memory than its limit, and can still allocate."""
        rows = {row["pid"]: row for row in self.daemon.books()["processes"]}
        for tenant in self.honest:
            assert rows[tenant.pid]["peak_bytes"] <= LIMIT
            assert tenant.tell("alloc 64MiB")["ok"], "its own share is not there"
            tenant.tell("free")
            assert tenant.tell("alloc 256MiB")["ok"]

    def busy(self) -> list[int]:
        """Device time of the honest tenants, according to the simulator."""
        return list(self.daemon.busy(*(tenant.pid for tenant in self.honest)))

    def ledger(self) -> None:
        """Ends the honest tenants; asserts that the ledger has what the device did for them, less what was lost when
        the daemon was killed."""
        for tenant in self.honest:
            tenant.tell("idle")
        true = self.busy()
        for tenant, grant, did, lost in zip(self.honest, self.grants, true, self.lost, strict=True):
            tenant.close()
            until(lambda grant=grant: self.grant(grant)["phase"] == "released", "it ends")
            notified = self.grant(grant)["devices"][0]["busy_ns"]
            print(f"{grant}: {notified / 1e9:.2f} s in the ledger, {did / 1e9:.2f} s true, {lost / 1e9:.2f} s lost")
            assert abs(notified + lost - did) <= did * 0.05 + 100e6, (notified, lost, did)

    def end_hostile(self) -> None:
        for actor in self.actors.values():
            actor.end()

    def end(self) -> None:
        self.end_hostile()
        for tenant in self.honest:
            tenant.kill()

    def report(self, seed: int) -> str:
        slow = sorted(self.took.items(), key=lambda one: -one[1])[:5]
        lines = [f"seed {seed}: {sum(self.done.values())} attacks of {len(self.done)} kinds, {self.starts} starts"]
        lines += [f"the slowest answer took {self.slowest * 1000:.0f} ms, {self.refusals} images were refused"]
        lines += [f"slow: {name} {seconds:.1f} s, {self.done[name]} times" for name, seconds in slow]
        lines += [f"could not be done: {name} {n}: {self.reasons[name]}" for name, n in self.failed.items()]
        return "\n".join(lines)
