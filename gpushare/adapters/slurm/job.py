"""What a job has on this node as Slurm reports it, and the grant requests for that. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.errors import FailedError, UsageError
from gpushare.text.units import PAGE, parse_idle_after

Json = dict[str, Any]

KEYS = "slurm/"
"""Prefix of the key of every grant of a job."""

DEVICE_MILLI = 1000
_COMMENT = re.compile(r"(?:^|[\s;])gpushare:(\S+)")
# Setting in a job's comment -> field of a GrantRequest. Not the tenant: that is the account, which Slurm has checked.
_WORDS = {
    "memory": "memory",
    "time-limit": "time_limit",
    "class": "class",
    "managed": "managed",
    "idle-memory": "idle_memory",
    "idle-after": "idle_after_seconds",
    "priority": "priority",
    "borrow-memory": "borrow_memory",
    "reclaim": "max_rung",
    "grace": "grace_seconds",
    "eviction-signal": "eviction_signal",
}
_NUMBERS: dict[str, Callable[[str], float]] = {"priority": int, "grace": int, "idle-after": parse_idle_after}
# `Nodes=... CPU_IDs=... Mem=... GRES=...`: once per group of nodes with the same, in `scontrol show job --details`.
_GROUP = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_LIST = r"[0-9]{1,3}(?:-[0-9]{1,3})?"
_PART = re.compile(
    rf"(gpu|shard)(?::[^:(,]+)??:([0-9]{{1,6}})"
    rf"\((?:IDX:({_LIST}(?:,{_LIST})*)|([0-9]{{1,6}}/[0-9]+(?:,[0-9]{{1,6}}/[0-9]+)*))\)"
)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as slurmd describes it to its prolog. `restarts`: number of requeues. `account`: empty: none."""

    cluster: str
    id: str
    uid: int
    gid: int
    restarts: int
    account: str
    comment: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Job":
        """Reads the job from slurmd's environment. Raises UsageError if slurmd did not call this."""
        try:
            return cls(
                cluster=environment.get("SLURM_CLUSTER_NAME", ""),
                id=str(int(environment["SLURM_JOB_ID"])),
                uid=int(environment["SLURM_JOB_UID"]),
                gid=int(environment["SLURM_JOB_GID"]),
                restarts=int(environment.get("SLURM_JOB_RESTART_COUNT", "0")),
                account=environment.get("SLURM_JOB_ACCOUNT", ""),
                comment=environment.get("SLURM_JOB_COMMENT", ""),
            )
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"no job of Slurm in the environment ({error}): slurmd calls this as Prolog and Epilog"
            ) from None

    @property
    def keys(self) -> str:
        """Prefix of the keys of its grants."""
        return f"{KEYS}{self.cluster}/{self.id}/"

    def began_by_now(self, key: str) -> bool:
        """Whether a grant belongs to this run of the job or an earlier one. Slurm may restart a requeued job before the
        last run's epilog has ended: that epilog must not end the new run's grants."""
        return key.startswith(self.keys) and run_of(key) <= self.restarts


@dataclass(frozen=True, slots=True)
class Has:
    """Devices that Slurm gave the job, by Slurm's numbers. `shards`: per device; None: whole devices."""

    devices: tuple[int, ...]
    shards: int | None


def numbers(text: str) -> tuple[int, ...]:
    """Parses a list such as Slurm's `0-2,5`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def by_slurm(described: str, name: str, wckey: str) -> str:
    """Returns what Slurm itself writes in `scontrol show job --details --oneliner`, from job state to devices.

    Users choose other fields freely, and scontrol does not quote them, so that a job's name may look like fields. Two
    of them, `name` and `wckey`, come before that part. Raises FailedError if they are not as given.
    """
    _, _, rest = described.partition(" JobName=")
    if not rest.startswith(f"{name} UserId="):
        raise FailedError(f"scontrol does not show the job's name where it is expected: {described[:80]!r}")
    rest = rest[len(name) :]
    before, _, after = rest.partition(f" WCKey={wckey} JobState=")
    if wckey and after and " JobState=" not in before:
        return "JobState=" + after.partition(" MinCPUsNode=")[0]
    return "JobState=" + rest.partition(" JobState=")[2].partition(" MinCPUsNode=")[0]


def has(described: str, node: str, hosts: Callable[[str], Sequence[str]]) -> list[Has]:
    """Returns what a job has on this node. `described`: of `by_slurm`. `hosts`: expands a host list. Raises FailedError
    if it cannot be parsed."""
    found: list[Has] = []
    for names, gres in _GROUP.findall(described):
        if node != names and node not in hosts(names):
            continue
        for part in filter(None, re.split(r",(?![^(]*\))", gres)):
            if (one := _has(part)) is not None:
                found.append(one)
    return found


def _has(part: str) -> Has | None:
    matched = _PART.fullmatch(part)
    if matched is None:
        if part.startswith(("gpu:", "shard:")):
            raise FailedError(f"Slurm says {part[:80]!r} of the job's devices: this version cannot read that")
        return None
    kind, count, indices, pairs = matched.groups()
    if indices is not None:
        devices = numbers(indices)
    else:  # `30/100,0/100`: used of total shards, device by device
        taken = [int(pair.partition("/")[0]) for pair in (pairs or "").split(",")]
        devices = tuple(index for index, shards in enumerate(taken) if shards)
    if not devices:
        raise FailedError(f"Slurm says {part[:80]!r}, and not which devices: is File= missing in gres.conf?")
    if kind == "gpu":
        return Has(devices, None)
    if int(count) % len(devices):
        raise FailedError(f"{count} shards on {len(devices)} devices: ask for shards of one device")
    return Has(devices, int(count) // len(devices))


def requests(
    job: Job, held: Iterable[Has], devices: Sequence[Mapping[str, Any]], tenants: Iterable[str], per_device: int
) -> list[Json]:
    """Returns the GrantRequest fields for each of `held`. `devices`: the node API's, in the order of gres.conf.
    `per_device`: shards.

    Raises UsageError for an invalid comment, and FailedError for devices that do not exist.
    """
    asked = words(job.comment)
    tenant = job.account if job.account in tenants else "default"
    return [
        {
            **_share(one, devices, per_device),
            "tenant": tenant,
            **asked,
            "uid": job.uid,
            "keep": True,
            "key": f"{job.keys}{job.restarts}/{number}",
        }
        for number, one in enumerate(held)
    ]


def _share(one: Has, devices: Sequence[Mapping[str, Any]], per_device: int) -> Json:
    unknown = [number for number in one.devices if number >= len(devices)]
    if unknown:
        raise FailedError(f"Slurm gave device {unknown[0]} and this node has {len(devices)}: write gres.conf again")
    chosen = [devices[number] for number in one.devices]
    named = {"devices": len(chosen), "device": ",".join(device["id"] for device in chosen)}
    free = min(device["capacity"]["memory"] - device["reserved"]["memory"] for device in chosen)
    part = per_device if one.shards is None else min(one.shards, per_device)
    return {"memory": free * part // per_device // PAGE * PAGE, "time": DEVICE_MILLI * part // per_device, **named}


def words(comment: str) -> Json:
    """Parses `gpushare:memory=8GiB,class=interactive`, anywhere in the comment. Raises UsageError."""
    found = _COMMENT.search(comment)
    if found is None:
        return {}
    asked: Json = {}
    for part in found[1].split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in _WORDS:
            known = ", ".join(_WORDS)
            raise UsageError(f"{part[:80]!r} in the job's comment is unknown: write NAME=VALUE, of {known}")
        try:
            asked[_WORDS[name]] = _NUMBERS[name](value) if name in _NUMBERS else value
        except ValueError:
            raise UsageError(f"{part[:80]!r} in the job's comment is not a whole number") from None
    return asked


def run_of(key: str) -> int:
    """Returns the number of the job's run that the grant with this key belongs to."""
    parts = key.removeprefix(KEYS).split("/")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdecimal() else 0


def job_of(key: str) -> str | None:
    """Returns the id of the job whose grant has this key; None: the key is not a job's."""
    parts = key.removeprefix(KEYS).split("/")
    return parts[1] if key.startswith(KEYS) and len(parts) == 4 else None
