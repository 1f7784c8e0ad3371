"""gpushare.toml: what an administrator sets. Options of the command line override it."""

import ipaddress
import operator
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from gpushare.api.node import Enforce
from gpushare.api.share import GRACE_SECONDS_MAX, MaxRung
from gpushare.api.types import Placement
from gpushare.binding import arbiter as arbiter_api
from gpushare.daemon.remote.settings import Settings
from gpushare.daemon.state.history import History
from gpushare.errors import UsageError
from gpushare.policy.audit.audit import Act, Rules
from gpushare.policy.grants import admission
from gpushare.policy.grants.spread import PLACEMENT
from gpushare.policy.loans.recall import Policy
from gpushare.policy.loans.reclaim import Rung, rung_of
from gpushare.policy.quota.shares import DEVICE_MILLI
from gpushare.relay.limits import ATTACHMENTS_MAX
from gpushare.text import toml, units

LogLevel = Literal["debug", "info", "warning", "error"]

_AT = re.compile(r" - at `\$\.([^`]*)`$")
_UNKNOWN = re.compile(r" unknown field `([^`]*)`")

DEFAULT_CONFIG = Path("/etc/gpushare/gpushare.toml")
DEFAULT_TENANTS = Path("/etc/gpushare/tenants.toml")


USAGE_FACTOR_MAX = 3
"""Keeps all weights within what the arbiter takes."""


class ArbiterConfig(Struct, forbid_unknown_fields=True):
    """Milliseconds, fractions allowed; 0 keeps the built-in value (gs_arbiter.h)."""

    lease_ms: float = 0
    bound_ms: float = 0
    bound_alone_ms: float = 0
    bucket_ms: float = 0
    credit_floor_ms: float = 0
    realtime: bool = True


class PolicyConfig(Struct, forbid_unknown_fields=True):
    """How much recent borrowing counts against tenants' weights (docs/guides/tenants.md); 0: not at all."""

    usage_factor: float = 0
    usage_half_life_seconds: float = 3600


class ReclaimConfig(Struct, forbid_unknown_fields=True):
    """How memory on loan is reclaimed: gpushare.policy.loans.recall.Policy, in seconds."""

    max_rung: MaxRung = "kill"
    lend_to: Literal["demote", "evict", "kill"] = "evict"
    grace_seconds: float = 30
    min_hold_seconds: float = 60


class GuardConfig(Struct, forbid_unknown_fields=True):
    """`tracepoint`: what happens to a process that takes more device memory from the driver than its grant may have. By
    default it is only logged: code that the driver loads for a program whose grant is full counts too
    (docs/security/walls.md)."""

    tracepoint: Literal["kill", "log", "off"] = "log"


class MemoryConfig(Struct, forbid_unknown_fields=True):
    """`host_pool`: how much of the node's memory grants' device memory may move to; `auto`: half of what is free when
    the daemon starts. It is taken only as it is used (docs/guides/host-pool.md). `move_seconds`: how long a grant's
    processes may take to move out, besides a second for each GiB; where one is not done by then, all of it stays on
    the device. `idle_after_seconds`: memory of a grant whose programs did nothing for so long is copied to the host
    ahead of any move; 0: never. `allocation_wait_seconds`: how long an allocation of a grant that lends its memory
    waits for room on the device that is its own and that others use, before it is refused."""

    host_pool: str = "auto"
    move_seconds: float = 5
    idle_after_seconds: float = 300
    allocation_wait_seconds: float = 60


class RemoteConfig(Struct, forbid_unknown_fields=True):
    """Programs of other machines (docs/guides/remote/index.md). `listen`: where the relay takes their connections,
    ADDRESS:PORT; port 0: any; empty: nowhere. `host`: its name or address, as their machines are told; empty: they use
    the one by which they reach the node. `carriers`: another directory of carriers' contracts, besides
    /usr/share/gpushare/carriers and /etc/gpushare/carriers. `host_memory`: how much of the node's memory the server of
    one grant may use. `attachments`: how many there may be at once."""

    listen: str = ""
    host: str = ""
    carriers: str = ""
    host_memory: str = "4GiB"
    attachments: int = 64


class AuditConfig(Struct, forbid_unknown_fields=True):
    """What is done to processes that use a device without a share: gpushare.policy.audit.audit.Rules, in seconds."""

    evader: Literal["tell", "freeze", "kill"] = "freeze"
    outside: Literal["tell", "freeze", "kill"] = "tell"
    grace_seconds: float = 30


class Config(Struct, forbid_unknown_fields=True):
    """The file's keys. `simulate`: like the option, empty for real devices. `ledger_days`: how long ended grants and
    periods are kept. `ledger_seconds`: length of a period there; a killed daemon loses at most a second. `enforce`:
    with `required`, no grant is bound where only the interposer would hold it. `placement`: of shares for which neither
    request nor tenant says one. `exclusive`: users without a grant
    cannot open the devices' nodes, except root and `exclusive_users`, given by name or number."""

    simulate: str = ""
    state_dir: str = ""
    socket: str = ""
    tenants: str = ""
    group: str = "gpushare"
    ledger_days: int = 400
    ledger_seconds: int = 60
    log_level: LogLevel = "info"
    enforce: Enforce = "best"
    placement: Placement = PLACEMENT
    exclusive: bool = False
    exclusive_users: tuple[str, ...] = ("nvidia-persistenced",)
    arbiter: ArbiterConfig = msgspec.field(default_factory=ArbiterConfig)
    policy: PolicyConfig = msgspec.field(default_factory=PolicyConfig)
    reclaim: ReclaimConfig = msgspec.field(default_factory=ReclaimConfig)
    guard: GuardConfig = msgspec.field(default_factory=GuardConfig)
    audit: AuditConfig = msgspec.field(default_factory=AuditConfig)
    memory: MemoryConfig = msgspec.field(default_factory=MemoryConfig)
    remote: RemoteConfig = msgspec.field(default_factory=RemoteConfig)


RANGES = {
    "ledger_seconds": (1, 3600),
    "ledger_days": (1, 36500),
    "policy.usage_factor": (0, USAGE_FACTOR_MAX),
    "policy.usage_half_life_seconds": (1, 31 * 86400),
    "reclaim.grace_seconds": (0, GRACE_SECONDS_MAX),
    "reclaim.min_hold_seconds": (0, 86400),
    "audit.grace_seconds": (0, 86400),
    "memory.move_seconds": (0.1, 600),
    "memory.idle_after_seconds": (0, 86400),
    "memory.allocation_wait_seconds": (0, 86400),
    "remote.attachments": (1, ATTACHMENTS_MAX),
    "arbiter.lease_ms": (0, 10_000),
    "arbiter.bound_ms": (0, 1000),
    "arbiter.bound_alone_ms": (0, 1000),
    "arbiter.bucket_ms": (0, 10_000),
    "arbiter.credit_floor_ms": (0, 1000),
}
"""Minimum and maximum of numeric keys."""


def load(path: Path | None) -> Config:
    """Reads the file. Returns the built-in values if no file is named and the default one is absent. Raises UsageError
    with the file, the line, the key and the reason."""
    try:
        file = toml.read(path or DEFAULT_CONFIG)
    except FileNotFoundError:
        if path is None:
            return Config()
        raise UsageError(f"{path}: no such file: name an existing one with --config") from None
    try:
        config = msgspec.convert(file.values, Config)
    except msgspec.ValidationError as error:
        at, unknown = _AT.search(str(error)), _UNKNOWN.search(str(error))
        keys = [key for found in (at, unknown) if found for key in found[1].split(".")]
        raise UsageError(f"{file.place(*keys)}: {error}") from None
    for name, (low, high) in RANGES.items():
        value = operator.attrgetter(name)(config)
        if not low <= value <= high:
            raise UsageError(f"{file.place(*name.split('.'))}: {name} is {value}: give {low} to {high}")
    for section, key, check in (
        ("memory", "host_pool", lambda: host_pool(config.memory)),
        ("remote", "listen", lambda: address(config.remote.listen)),
        ("remote", "host", lambda: host(config.remote.host)),
        ("remote", "carriers", lambda: directory(config.remote.carriers)),
        ("remote", "host_memory", lambda: units.parse_size(config.remote.host_memory)),
    ):
        try:
            check()
        except UsageError as error:
            raise UsageError(f"{file.place(section, key)}: {error}") from None
    return config


def arbiter(asked: ArbiterConfig) -> arbiter_api.Config:
    """The arbiter's own configuration: nanoseconds, built-in values where none is given."""
    usual = arbiter_api.Config()
    return replace(
        usual,
        lease_ns=round(asked.lease_ms * 1e6) or usual.lease_ns,
        bound_ns=round(asked.bound_ms * 1e6) or usual.bound_ns,
        bound_alone_ns=round(asked.bound_alone_ms * 1e6) or usual.bound_alone_ns,
        bucket_ns=round(asked.bucket_ms * 1e6) or usual.bucket_ns,
        credit_floor_ns=round(asked.credit_floor_ms * 1e6) or usual.credit_floor_ns,
        realtime=asked.realtime,
    )


def history(asked: PolicyConfig) -> History:
    """The history of what tenants borrowed, with the configured half-life."""
    return History(asked.usage_factor, asked.usage_half_life_seconds)


def reclaim(asked: ReclaimConfig) -> Policy:
    """Converts the section to the terms of gpushare.policy."""
    return Policy(
        most=rung_of(asked.max_rung) or Rung.KILL,
        lend_to=rung_of(asked.lend_to) or Rung.EVICT,
        grace_ns=round(asked.grace_seconds * 1e9),
        min_hold_ns=round(asked.min_hold_seconds * 1e9),
    )


def host_pool(asked: MemoryConfig) -> int | None:
    """Bytes of the host pool; None: as much as the node's free memory suggests. Raises UsageError."""
    if asked.host_pool == "auto":
        return None
    if asked.host_pool.strip() == "0":
        return 0
    try:
        return units.parse_size(asked.host_pool)
    except UsageError as error:
        raise UsageError(f"memory.host_pool is neither auto, 0 nor a size: {error}") from None


def address(text: str) -> str:
    """`ADDRESS:PORT` of the relay, an IPv6 address in brackets; empty: none. Raises UsageError."""
    if text and not _is_address(*text.rpartition(":")[::2]):
        raise UsageError(
            f"remote.listen {text!r} is not ADDRESS:PORT, such as 0.0.0.0:7433 or [::]:7433, with a port from 1024 on"
        )
    return text


def _is_address(address: str, port: str) -> bool:
    bare = address.removeprefix("[").removesuffix("]")
    try:
        usual = f"[{bare}]" if ipaddress.ip_address(bare).version == 6 else bare
    except ValueError:
        return False
    return usual == address and port.isascii() and port.isdecimal() and (port == "0" or 1024 <= int(port) < 1 << 16)


def host(text: str) -> str:
    """The name of the relay's host. Raises UsageError."""
    if len(text) > 253 or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"remote.host {text[:40]!r} is no name or address of a host")
    return text


def directory(text: str) -> Path | None:
    """A directory by its absolute path; None: none. Raises UsageError."""
    if text and not text.startswith("/"):
        raise UsageError(f"remote.carriers {text!r} is not absolute: begin it with /")
    return Path(text) if text else None


def remote(asked: RemoteConfig) -> Settings:
    """Converts the section. Raises UsageError."""
    return Settings(
        listen=address(asked.listen),
        host=host(asked.host),
        carriers=directory(asked.carriers),
        host_memory=units.parse_size(asked.host_memory),
        attachments=asked.attachments,
    )


def audit(asked: AuditConfig) -> Rules:
    """Converts the section to the terms of gpushare.policy."""
    return Rules(Act(asked.evader), Act(asked.outside), round(asked.grace_seconds * 1e9))


def smallest_share(config: arbiter_api.Config) -> int:
    """The smallest share that the arbiter can serve, in milli. Raises UsageError if it could not even serve a whole
    device."""
    smallest = admission.smallest_share(config.credit_floor_ns, config.bucket_ns)
    if smallest > DEVICE_MILLI:
        raise UsageError(
            f"arbiter.credit_floor_ms is {config.credit_floor_ns / 1e6:g} and arbiter.bucket_ms"
            f" {config.bucket_ns / 1e6:g}: no share could be served, the bucket has to hold the floor"
        )
    return smallest
