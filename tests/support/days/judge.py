"""What must hold on a random day, and when it does not."""

from collections import Counter
from typing import Any

from days.clock import S
from days.device import Device
from days.mover import Kind, Mover, Passage
from days.program import Program

from gpushare.daemon.state.live import Live
from gpushare.policy.grants import lifecycle
from gpushare.policy.loans.reclaim import Rung
from gpushare.policy.residency.states import By, Where

_EVENING_S = 600
_TRIES = 10
_AFTER_LIARS_NS = 60 * S
_WANT_S = 120
"""For so long a want is remembered after it was last asked for (recall.WANT_NS)."""


class Fault(AssertionError):
    """Something does not hold."""


class Judge:
    """`up_ns`: since when the daemon runs. `person_ns`: when a person last did something with a grant. `asked_ns`: when
    the last asker ended. `longest_ns`: for how long an owner waited for its memory."""

    def __init__(self, day: Any) -> None:
        self._day = day
        self.up_ns = day.clock.now_ns
        self.person_ns: dict[str, int] = {}
        self.asked_ns = 0
        self._liar_ns: int | None = None
        self._leaves: set[str] = set()
        self._kept_ns: dict[str, int] = {}
        self.longest_ns = self._seen = 0

    def fault(self, text: str) -> None:
        day = self._day
        raise Fault(f"{text}\nseed {day.seed}, {(day.clock.now_ns / S) - 1000:.4f} s after the day began")

    def begin(self) -> None:
        """The day begins."""
        self._look()

    # At every moment.

    def check(self) -> None:
        """Called after each step."""
        day, node = self._day, self._day.node
        seen = node.effects + sum(device.changes for device in day.devices)
        if not node.up or seen == self._seen:
            return
        self._seen = seen
        here: Counter[str] = Counter()
        for live in node.state:
            place = live.record.places[0]
            here[place.device] += place.here_bytes
            if live.record.residency.leaving:  # others may come in meanwhile, as it leaves
                here[place.device] -= min(live.record.residency.hosted_bytes, place.memory_bytes)
            programs = day.programs.get(live.id, ())
            mapped = sum(one.mapped for one in programs)
            honest = all(one.kind is not Kind.LIAR for one in programs)
            if mapped > place.here_bytes + self._in_flight(live) and honest:
                self.fault(f"{live.id} has {mapped} on its device, and {place.here_bytes} in the books")
            self._why_it_leaves(live)
        for device in day.devices:
            if here[device.name] > device.capacity:
                self.fault(f"the books of {device.name} have {here[device.name]} of {device.capacity}")
        book = node.pool.book
        counts = book.counts()
        # What was given back and is not empty yet may be reserved again: no file is made of it before.
        if counts.used + counts.reserved - book._leaving_bytes > book.size:
            self.fault(f"the host pool has {counts} of {book.size}")

    def _why_it_leaves(self, live: Live) -> None:
        now = live.record.residency
        if now.where is not Where.SUSPENDING:
            self._leaves.discard(live.id)
        elif live.id not in self._leaves:
            self._leaves.add(live.id)
            self._day.note(f"{live.id} leaves by {now.by}")
            if now.by is not By.PERSON and not self._anybody_wants(live.id):
                self.fault(f"{live.id} leaves by {now.by}, and nobody wants anything")

    def _anybody_wants(self, but: str) -> bool:
        day, node = self._day, self._day.node
        if day.askers or day.clock.now_ns - self.asked_ns < 45 * S or node.state.recalls.wants:
            return True
        return any(live.record.residency.where is not Where.RESIDENT for live in node.state if live.id != but)

    def _in_flight(self, live: Live) -> int:
        """Bytes of a grant that was given up while it left and goes on leaving: a process says that an allocation has
        left before it has."""
        programs = self._day.programs.get(live.id, ())
        if live.record.residency.where is not Where.SUSPENDED:
            return 0
        moving = (one for one in programs if one.state is Passage.MOVING)
        return sum(max((piece.size for piece in one.pieces), default=0) for one in moving)

    def _excused(self, device: Device) -> bool:
        """Whether somebody has room of a device that the books know nothing of: a liar, or one that has been killed."""
        return self._liars() or device.dying > 0

    def _liars(self) -> bool:
        """Whether there are any, or were a moment ago."""
        day = self._day
        if any(one.kind is Kind.LIAR for own in day.programs.values() for one in own):
            self._liar_ns = day.clock.now_ns
        return self._liar_ns is not None and bool(day.clock.now_ns < self._liar_ns + _AFTER_LIARS_NS)

    def _leaving(self, device: Device) -> bool:
        state = self._day.node.state
        return any(one.record.residency.leaving and one.record.places[0].device == device.name for one in state)

    def no_room(self, program: Mover, size: int) -> None:
        """A device had no room for memory that comes back."""
        device = program.device
        if not self._excused(device) and not self._leaving(device):
            self.fault(f"{program.grant} has no room for {size} on {device.name}: {device.used} of {device.capacity}")

    def no_memory(self, program: Mover, size: int) -> None:
        """A device had no room for an allocation. Of a grant that lends it waits while others leave."""
        device = program.device
        others = any(one.record.residency.where is Where.RESUMING for one in self._day.node.state)
        if program.lends and (others or self._leaving(device)):
            return
        if not self._excused(device):
            self.fault(f"{program.grant} has no room for an allocation of {size} on {device.name}: {device.used}")

    def no_host(self, program: Mover) -> None:
        """A process found too little host memory for what was to leave."""
        node = self._day.node
        gone = any(not one.alive for one in program.limits.programs)  # whose memory comes free in a moment
        if node.up and program.grant in node.state and not gone:
            # One that has freed some of what is coming back keeps its host memory until all is back.
            need = sum(max(one.movable, one.drawn) for one in self._day.programs.get(program.grant, ()))
            book = node.pool.book
            drawn = sum(one.drawn for own in self._day.programs.values() for one in own)
            if book.counts().used > drawn:
                return  # what was given back a moment ago is not emptied yet
            if book.reserved(program.grant) >= need:
                said = f"{book.reserved(program.grant)} is reserved, {program.drawn} drawn"
                self.fault(f"{program.grant} has no host memory for {need}: {said}, {book.counts()}")

    def ends(self, live: Live, event: lifecycle.Event) -> None:
        """The daemon ends a grant with what runs in it."""
        if "on loan" in getattr(event, "reason", "") and live.asked.max_rung is not Rung.KILL:
            self.fault(f"{live.id} is ended, which allows {live.asked.max_rung.word}")

    # From time to time.

    def _look(self) -> None:
        day = self._day
        self._liars()
        if day.node.up:
            for program in day.waiting:
                self._waits(program)
        day.clock.later(S // 4, self._look)

    def bound_ns(self) -> int:
        """For how long an owner may wait: until all of the device has left over the link and as much has come back,
        and those that have to leave have ended their work, or their grace. One that is stopped is given up after
        `move_seconds` and a second for each GiB."""
        day = self._day
        programs = [one for own in day.programs.values() for one in own]
        silent = any(one.stopped or one.kind is not Kind.HONEST for one in programs)
        given_up = 5 * S + day.devices[0].capacity * S // (1 << 30) if silent else 0
        copies = 2 * day.devices[0].capacity * S // day.rate
        graces = int(day.grace_s * S) if any(one.borrow_memory for one in day.requests.values()) else 0
        return int(1.3 * copies) + 8 * S + graces + given_up

    def _waits(self, program: Program) -> None:
        day, node = self._day, self._day.node
        if program.kind is not Kind.HONEST or program.stopped or program.grant not in node.state or self._liars():
            return
        live = node.state.live(program.grant)
        now, place = live.record.residency, live.record.places[0]
        own = day.programs[program.grant]
        if place.borrowed_bytes or now.hold or program.grant in day.held or any(one.stopped for one in own):
            return
        if self._keep_for_ever(place.device):
            self._kept_ns[place.device] = day.clock.now_ns
        kept_ns = self._kept_ns.get(place.device, 0)
        waited = day.clock.now_ns - max(
            program.wants_ns or 0, self.up_ns, kept_ns, self.person_ns.get(program.grant, 0)
        )
        self.longest_ns = max(self.longest_ns, waited)
        if waited > self.bound_ns():
            self.fault(
                f"{live.id} has waited {waited / S:.2f} s for its own memory, the bound is {self.bound_ns() / S:.2f} s:"
                f" it is {now.where}, waits for {now.waits!r}"
            )

    def _keep_for_ever(self, device: str) -> bool:
        """Whether somebody has memory on loan that only its own program can give back, since it may not be ended: it
        keeps its memory on the device, or will not leave, or the host pool has no room for it."""
        node = self._day.node
        free = node.pool.free_bytes
        for live in node.state:
            place, programs = live.record.places[0], self._day.programs.get(live.id, ())
            now = live.record.residency
            if place.device != device or not place.borrowed_bytes or live.asked.max_rung is Rung.KILL:
                continue
            stays = any(one.kind is not Kind.HONEST or one.stopped for one in programs)
            # What cannot be moved of one that may be asked to go, and does not.
            stays = stays or (now.where is Where.SUSPENDED and live.asked.max_rung is Rung.EVICT)
            if (
                not live.asked.lends
                or stays
                or sum(one.movable for one in programs) > free + node.pool.book.reserved(live.id)
            ):
                return True
        return False

    # The evening.

    def evening(self) -> None:
        """Everybody goes to rest: who waits is served, then all that is away comes back, then nothing is left."""
        day, clock = self._day, self._day.clock
        if not day.node.up:
            day._start_daemon()
        day.note("the evening")
        day.node.dies_in = None
        day.rest()
        for live in day.node.state:
            if live.record.residency.hold:
                day.node.people(live.id, day.node.residency.resume)
                self.person_ns[live.id] = clock.now_ns
        day.held.clear()
        until_ns = clock.now_ns + _EVENING_S * S
        while clock.now_ns < until_ns and any(map(self._will_be_served, day.waiting)):
            clock.run_until(clock.now_ns + 2 * S, lambda: not day.waiting)
        for program in filter(self._will_be_served, day.waiting):
            now = day.node.state.live(program.grant).record.residency
            self.fault(f"{program.grant} is never served: {now.where}, waits for {now.waits!r}")
        for asker in list(day.askers):
            asker.end()
        self._all_back()
        self._nothing_left()

    def _will_be_served(self, program: Program) -> bool:
        live = self._day.node.state.live(program.grant)
        place = live.record.places[0]
        return self._could_have_room(live) if place.borrowed_bytes else not self._keep_for_ever(place.device)

    def _could_have_room(self, live: Live) -> bool:
        """Whether a borrower would have room if all that can leave its device did, one after the other."""
        node, programs = self._day.node, self._day.programs
        device = live.record.places[0].device
        free = next(one.capacity for one in self._day.devices if one.name == device)
        pool = node.pool.free_bytes
        for other in node.state:
            place = other.record.places[0]
            if place.device != device or other is live:
                continue
            own = programs.get(other.id, ())
            if other.asked.lends and sum(one.movable for one in own) > pool + node.pool.book.reserved(other.id):
                return False
            free -= sum(one.fixed for one in own) if other.asked.lends else place.memory_bytes
        needs: int = live.record.places[0].memory_bytes
        return needs <= free

    def _all_back(self) -> None:
        """Without borrowers there is room for all."""
        day, clock = self._day, self._day.clock
        for live in list(day.node.state):
            if live.record.places[0].borrowed_bytes or live.asked.borrow:
                day._ends_itself(live.id)
        for _ in range(_TRIES):  # requests are remembered for a while, for which what is idle may leave again
            for live in day.node.state:
                if live.asked.lends:
                    day.node.people(live.id, day.node.residency.resume)
            clock.run_until(clock.now_ns + self.bound_ns(), self._are_back)
        for live in list(day.node.state):
            if live.record.residency.where is not Where.RESIDENT:
                self.fault(f"{live.id} is {live.record.residency} though there is room for all")

    def _are_back(self) -> bool:
        day = self._day
        return all(live.record.residency.where is Where.RESIDENT for live in day.node.state)

    def _nothing_left(self) -> None:
        day, clock = self._day, self._day.clock
        for own in list(day.programs.values()):
            for program in own:
                if any(piece.here != piece.truth for piece in program.pieces) and program.state is Passage.OPEN:
                    self.fault(f"{program.grant} has lost bytes")
        for grant in list(day.programs):
            day._ends_itself(grant)
        clock.run_until(clock.now_ns + (_WANT_S + 30) * S)
        node = day.node
        left = [live.id for live in node.state]
        counts = node.pool.book.counts()
        wants = [*node.room._wants.wanted, *node.state.recalls.wants]
        if left or counts.used or counts.reserved or wants or any(one.used for one in day.devices):
            self.fault(f"something is left: {left}, {counts}, {wants}, {[one.used for one in day.devices]}")
