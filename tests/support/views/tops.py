"""Made-up answers of the node API for `top`, and the text on its screen."""

import json
from typing import Any

GIB = 1 << 30


def device(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        **{"id": f"GPU-{index}", "index": index, "name": "a device", "backend": "simulated", "wall_ns": 0},
        **{"capacity": {"time": 1000, "memory": 16 * GIB}, "memory_used_bytes": 0, "switch_ns": 0},
        **{"health": "healthy", "health_reason": "", "state": "ready", "drain_reason": "", **fields},
    }


def grant(name: str, at: int = 0, tenant: str = "default", created_ns: int = 0, **now: Any) -> dict[str, Any]:
    """`now`: fields of its device, or of the grant itself."""
    workload = {"program": "", "container": "", "pod": None}
    own = {"phase": "active", "class": "training", "notice": "", "processes": [], "gang": None, "reason": "", "uid": 0}
    own |= {"kind": "process", "pid": None, "workload": workload, "residency": None, "attachments": []}
    whole = {key: now.pop(key) for key in list(now) if key in own}
    times = dict.fromkeys(("used_milli", "borrowed_milli", "lent_milli", "waited_milli", "waits", "memory_bytes"), 0)
    here = {
        **{"id": f"GPU-{at}", "index": at, "time_milli": 250, "time_limit_milli": 1000, "guaranteed_milli": 250},
        **{
            "entitled_milli": 0,
            "served_milli": 250,
            "served_limit_milli": 1000,
            "memory_limit_bytes": GIB,
            "memory_hosted_bytes": 0,
            "memory_borrowed_bytes": 0,
            "memory_refusals": 0,
            "memory_refused": None,
            "extra_milli": 0,
            "leases": 0,
            "waiting": False,
            **times,
            **now,
        },
    }
    return {"id": name, "tenant": tenant, "created_ns": created_ns, "devices": [here], **own, **whole}


def attachment(origin: str = "lab2", rtt_us: int = 85, rate_bps: int = 0, checked: str = "good", **now: Any) -> Any:
    """A living one, or with `ended_ns` and `ending` one that has ended."""
    link = {"kind": "tls", "rtt_us": rtt_us, "rate_bps": rate_bps, "checked": checked}
    own = {"id": "a" * 32, "grant": "g-1", "carrier": "example", "origin": origin, "address": "192.0.2.7", "uid": 1000}
    own |= {"created_ns": 10**18, "ended_ns": None, "ending": "", "connections": 1, "bytes_in": 3 << 20, "bytes_out": 0}
    return {**own, "link": link, **now}


def tenant(name: str, parent: str | None = None, entitled: int = 0, **now: Any) -> dict[str, Any]:
    times = dict.fromkeys(("used_milli", "borrowed_milli", "lent_milli", "waited_milli"), 0)
    standing = {"state": "idle", "entitlement_milli": entitled, **times, **now}
    return {"name": name, "parent": parent, "guarantee": {"time": 0, "memory": 0}, "grants": 0, "now": standing}


class Answering:
    """A client that gives prepared answers. `rows`: by the name of the list; `story`: an Explanation; `pages`:
    DebugProcesses of any grant."""

    def __init__(self, **rows: list[Any]) -> None:
        self.rows: dict[str, list[Any]] = {"grants": [], "devices": [device()], "tenants": [], "events": [], **rows}
        self.pages: list[Any] = []
        self.story: dict[str, Any] = {"phase": "active", "now": [], "decisions": []}

    def text(self, target: str, *, timeout: float | None = None) -> str:
        return json.dumps(self.call("GET", target))

    def call(self, _method: str, target: str, body: Any = None, *, timeout: float | None = None) -> Any:
        if target.endswith("/debug"):
            return {"processes": self.pages}
        name = target.split("/")[2].partition("?")[0]
        return self.story if name == "explain" else {name: self.rows[name]}


def screen(app: Any) -> list[str]:
    """The lines that are sent to the terminal, without styles."""
    return [strip.text for strip in app.screen._compositor.render_strips()]
