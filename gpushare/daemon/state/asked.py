"""What a request for a grant asks for: read from it once, for all who decide on it and carry it out."""

from dataclasses import dataclass
from typing import cast, get_args

import msgspec

from gpushare.api.share import GRACE_SECONDS_MAX, PRIORITY_MAX, MaxRung
from gpushare.api.types import Gang, GrantRequest, Leases
from gpushare.binding.arbiter import ShareFlags
from gpushare.errors import RefusedError, UsageError
from gpushare.node.devices import MAX_DEVICES
from gpushare.policy.loans import reclaim
from gpushare.policy.loans.recall import Policy
from gpushare.policy.loans.reclaim import Rung
from gpushare.text import names
from gpushare.text.units import IDLE_SECONDS_MAX, IDLE_SECONDS_MIN, milli_of, parse_memory

TTL_SECONDS_MAX = 86400
_KEY_MAX = 256
_SET_MAX = 128
_GANG_MAX = 128
_GANG_SIZE_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """`memory`: bytes, or a checked percentage as text, of the device that is chosen later. `borrow`: how much may
    be on loan; 0: none. `gang`: with its size filled in. `max_rung`, `grace_ns`: how time and memory may be taken back
    from it, limited to what this node allows. `idle_after_ns`: after how long without work its memory counts as idle;
    None: as its tenant or the node says (State.idle_after_ns)."""

    request: GrantRequest
    memory: int | str
    time_milli: int
    limit_milli: int
    gang: Gang | None
    borrow: int | str
    max_rung: Rung
    grace_ns: int
    idle_after_ns: int | None = None

    @classmethod
    def of(cls, request: GrantRequest, policy: Policy) -> "Asked":
        """Reads a request. `policy`: the node's. By default time is taken back from every grant, and memory is asked
        back from one that borrows it. Raises UsageError for a value that makes no sense."""
        request = msgspec.structs.replace(request, tenant=names.composed(request.tenant))
        borrow, grace, idle = request.borrow_memory, request.grace_seconds, request.idle_after_seconds
        grace = policy.grace_ns / 1e9 if grace is None else max(0, min(grace, GRACE_SECONDS_MAX))
        rung = reclaim.rung_of(request.max_rung) if request.max_rung is not None else None
        size = memory(request.memory)
        return cls(
            request=request,
            memory=size,
            time_milli=milli_of(request.time),
            limit_milli=milli_of(request.time_limit),
            gang=_gang(request),
            borrow=0 if borrow is False else size if borrow is True else memory(borrow),
            max_rung=min(policy.most, rung or (Rung.EVICT if borrow else Rung.THROTTLE)),
            grace_ns=min(policy.grace_ns, round(grace * 1e9)),
            idle_after_ns=round(min(idle, IDLE_SECONDS_MAX) * 1e9) if idle is not None else None,
        )

    @property
    def tenant(self) -> str:
        """The name of the tenant."""
        return self.request.tenant

    @property
    def gang_id(self) -> str | None:
        """The id of its gang; None: it names none."""
        return self.gang.id if self.gang is not None else None

    @property
    def lends(self) -> bool:
        """Whether its memory may be moved to host memory."""
        return self.request.idle_memory == "lend"

    @property
    def borrows_by_moving(self) -> bool:
        """Whether memory on loan can be had back from it only by moving its memory."""
        return bool(self.borrow) and self.lends and self.max_rung is Rung.DEMOTE

    @property
    def lease_flags(self) -> ShareFlags:
        """How the arbiter gives the grant's leases. A gang with devices elsewhere is never stopped for others: its
        ranks here would spin for the ranks there, which this node cannot stop at the same collective."""
        gang, devices = self.gang, self.request.devices
        if gang is not None and gang.size is not None and gang.size > devices:
            return ShareFlags.BESIDE
        together = devices > 1 and (gang is None or gang.leases == "together")
        return ShareFlags.GANG if together else ShareFlags.NONE

    def check(self, policy: Policy, host_pool_bytes: int = 0) -> None:
        """Raises UsageError for a value that is out of range, RefusedError for what this node does not do.
        `host_pool_bytes`: size of the node's host pool."""
        request = self.request
        if request.ttl_seconds is not None and not 1 <= request.ttl_seconds <= TTL_SECONDS_MAX:
            raise UsageError(f"ttl_seconds {request.ttl_seconds} is out of range: give 1 to {TTL_SECONDS_MAX}")
        if request.key is not None and not 1 <= len(request.key) <= _KEY_MAX:
            raise UsageError(f"the key has {len(request.key)} characters: give 1 to {_KEY_MAX}")
        if not 1 <= request.devices <= MAX_DEVICES:
            raise UsageError(f"devices {request.devices} is out of range: give 1 to {MAX_DEVICES}")
        if not -PRIORITY_MAX <= request.priority <= PRIORITY_MAX:
            raise UsageError(f"priority {request.priority} is out of range: give {-PRIORITY_MAX} to {PRIORITY_MAX}")
        if self.lends:
            self._check_lent(host_pool_bytes)
        self._check_idle_after()
        self._check_grace(policy)
        self._check_loan(policy)
        if request.in_turn is not None:
            self._check_in_turn(request.in_turn.set)

    def _check_lent(self, host_pool_bytes: int) -> None:
        if self.request.devices != 1 or (self.gang is not None and (self.gang.size or 1) > 1):
            raise UsageError("idle_memory lend is for grants of one device that are no part of a larger job for now")
        if self.request.in_turn is not None:
            raise UsageError("grants that run in turn share their memory: leave idle_memory or in_turn out")
        if not host_pool_bytes:
            raise UsageError(
                "idle_memory lend needs host memory to move to, and this node has no host pool: leave idle_memory out,"
                " or have `[memory] host_pool` set in gpushare.toml"
            )

    def _check_idle_after(self) -> None:
        seconds = self.request.idle_after_seconds
        if seconds is None:
            return
        if not self.lends:
            raise UsageError(
                "idle_after_seconds is for memory that is lent while it is idle: add idle_memory lend, or leave it out"
            )
        if not IDLE_SECONDS_MIN <= seconds <= IDLE_SECONDS_MAX:
            raise UsageError(
                f"idle_after_seconds {seconds:g} is out of range: give {IDLE_SECONDS_MIN:g} to {IDLE_SECONDS_MAX}"
            )

    def _check_grace(self, policy: Policy) -> None:
        grace, most = self.request.grace_seconds, policy.grace_ns / 1e9
        if grace is not None and not 0 <= grace <= GRACE_SECONDS_MAX:
            raise UsageError(f"grace_seconds {grace:g} is out of range: give 0 to {GRACE_SECONDS_MAX}")
        if grace is not None and grace > most:
            raise RefusedError(f"a grace of {grace:g} s is more than this node gives: ask for {most:g} s or less")

    def _check_loan(self, policy: Policy) -> None:
        if not self.borrow or policy.lends(self.max_rung, movable=self.lends):
            return
        least = policy.least(movable=self.lends)
        if policy.most < least:
            raise RefusedError(f"this node lends no memory: its [reclaim] max_rung is {policy.most.word}")
        words = f"{least.word} or {Rung.KILL.word}" if least < min(policy.most, Rung.KILL) else least.word
        raise RefusedError(
            f"memory is lent to grants that may be asked to give it back: ask with a max_rung of {words}, not"
            f" {self.request.max_rung or self.max_rung.word} (gpushare run: --reclaim; annotations: reclaim)"
        )

    def _check_in_turn(self, name: str) -> None:
        if self.request.devices != 1 or self.request.borrow_memory:
            raise UsageError(
                "grants that run in turn share parts of one device, none of it on loan: ask for one device"
            )
        if not 1 <= len(name) <= _SET_MAX:
            raise UsageError(f"a set's name has 1 to {_SET_MAX} characters, not {len(name)}: shorten it")


def memory(value: int | str) -> int | str:
    """Bytes, or a checked percentage as text. Raises UsageError."""
    text = f"{value}B" if isinstance(value, int) else value
    if text.strip().endswith("%"):
        parse_memory(text, 1 << 40)
        return text
    return parse_memory(text, 0)


def rung_word(rung: Rung) -> MaxRung:
    """The rung as on the wire."""
    return cast(MaxRung, rung.word)


def _gang(request: GrantRequest) -> Gang | None:
    if request.gang is None:
        return None
    asked = _gang_of_text(request.gang) if isinstance(request.gang, str) else request.gang
    if asked.id is not None and not (1 <= len(asked.id) <= _GANG_MAX and asked.id.isprintable()):
        raise UsageError(f"a gang's id has 1 to {_GANG_MAX} printable characters, not {len(asked.id)}: shorten it")
    size = request.devices if asked.size is None else asked.size
    if not request.devices <= size <= _GANG_SIZE_MAX:
        raise UsageError(
            f"a gang of {size} devices cannot have {request.devices} of them in this grant: give its size in all,"
            f" {request.devices} to {_GANG_SIZE_MAX}"
        )
    if size > request.devices and asked.leases == "independent":
        raise UsageError(
            f"the gang is independent, but {size - request.devices} of its {size} devices are elsewhere: leave that"
            " out, or the size"
        )
    return Gang(id=asked.id, size=size, leases=asked.leases)


def _gang_of_text(text: str) -> Gang:
    if not text:
        raise UsageError("the gang is empty: write ID[:SIZE[:TURNS]], as job-7:4, or leave it out")
    name, _, rest = text.partition(":")
    size, _, leases = rest.partition(":")
    if size and not (size.isascii() and size.isdecimal() and len(size) < 8):
        raise UsageError(f"gang {text[:80]!r} has no number as its size: write ID[:SIZE[:TURNS]], as job-7:4")
    if leases and leases not in get_args(Leases):
        raise UsageError(f"turns {leases[:40]!r} are unknown: write {' or '.join(get_args(Leases))}")
    return msgspec.convert(
        {"id": name or None, "size": int(size) if size else None, "leases": leases or "together"}, Gang
    )
