"""Controls on the channel groups of other processes of this benchmark: controls.py FILE

FILE is the control device, opened for the one question that is asked through an open file of its own. Commands on
stdin, one JSON object each:

  groups PID LOG            the compute groups of a process, from what native/iolog.c wrote of it
  foreign PID               a control through a file of our own
  timeslice PID US          of all its groups
  schedule PID 0|1          takes them off the device, puts them back
  repeat CONTROL PID COUNT  at most so often: timeslice (to what it is), schedule (off, a pause, on) or preempt
  channels PID OTHER 0|1    their channels, by the hand of OTHER's client
  undo                      what is not as it was; says the status of each

Whatever was changed is put back before it ends, by a signal, too; it also ends with the process that it belongs to.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpubench import rm

_PAUSE_SECONDS = 0.02  # between the halves of a repeated control, so that the device comes to work again
_REPEAT_SECONDS = 10.0  # one whose calls take long is repeated less often


@dataclass
class Target:
    owner: rm.Owner
    groups: list[rm.Object]
    subdevices: list[rm.Object]
    channels: list[rm.Object]
    timeslice_us: list[int]
    """Of each group, as it was."""


@dataclass
class Samples:
    """Nanoseconds of each call, and how often each status came."""

    borrow: list[int] = field(default_factory=list)
    call: list[int] = field(default_factory=list)
    status: dict[str, int] = field(default_factory=dict)

    def said(self) -> dict[str, Any]:
        return {"borrow_ns": self.borrow, "call_ns": self.call, "status": self.status}


class Controls:
    def __init__(self, device: str) -> None:
        self._device = device
        self._targets: dict[int, Target] = {}
        self._undo: dict[tuple[str, int], Callable[[], Samples]] = {}

    # One call.

    def _call(self, pid: int, one: rm.Object, command: int, parameters: Any, samples: Samples) -> str:
        """Through the file with which the object was made."""
        began = time.perf_counter_ns()
        try:
            with self._targets[pid].owner.borrowed(one.file, one.descriptor) as descriptor:
                borrowed = time.perf_counter_ns()
                status = rm.control(descriptor, one.client, one.handle, command, parameters)
                done = time.perf_counter_ns()
        except OSError as error:
            status = str(error.strerror or error)
        else:
            samples.borrow.append(borrowed - began)
            samples.call.append(done - borrowed)
        samples.status[status] = samples.status.get(status, 0) + 1
        return status

    def _all(self, pid: int, command: int, parameters: Callable[[int], Any]) -> Samples:
        """The same control on each group, with parameters by its index."""
        samples = Samples()
        for index, group in enumerate(self._targets[pid].groups):
            self._call(pid, group, command, parameters(index), samples)
        return samples

    def _unless_refused(self, key: tuple[str, int], samples: Samples, *, done: bool = False) -> None:
        """What was refused, or is done by now, needs no undoing."""
        if set(samples.status) <= ({"NV_OK"} if done else rm.REFUSED):
            self._undo.pop(key, None)

    # Commands.

    def groups(self, pid: int, log: str) -> dict[str, Any]:
        """Those of its groups that are still there: asking for the timeslice changes nothing."""
        found = rm.objects(Path(log))
        made = [one for one in found if one.class_ == rm.CHANNEL_GROUP]
        samples = Samples()
        try:
            target = Target(rm.Owner(pid), [], [], [], [])
        except OSError as error:
            samples.status[f"pidfd_open: {error.strerror}"] = 1
            return {"made": len(made), "groups": 0, "channels": 0, "timeslice_us": [], **samples.said()}
        self._targets[pid] = target
        for group in [one for one in made if one.engine == rm.GRAPHICS] or made:
            timeslice = rm.Timeslice()
            if self._call(pid, group, rm.GET_TIMESLICE, timeslice, samples) == "NV_OK":
                target.groups.append(group)
                target.timeslice_us.append(timeslice.us)
        parents = {(one.client, one.handle) for one in target.groups}
        devices = {(one.client, one.parent) for one in target.groups}
        target.channels = [one for one in found if (one.client, one.parent) in parents]
        target.subdevices = [one for one in found if one.class_ == rm.SUBDEVICE and (one.client, one.parent) in devices]
        answer = {"made": len(made), "groups": len(target.groups), "channels": len(target.channels)}
        return {**answer, "timeslice_us": target.timeslice_us, **samples.said()}

    def foreign(self, pid: int) -> dict[str, Any]:
        group = self._targets[pid].groups[0]
        descriptor = os.open(self._device, os.O_RDWR | os.O_CLOEXEC)
        try:
            status = rm.control(descriptor, group.client, group.handle, rm.GET_TIMESLICE, rm.Timeslice())
        finally:
            os.close(descriptor)
        return {"status": {status: 1}}

    def _timeslice_back(self, pid: int) -> Samples:
        before = self._targets[pid].timeslice_us
        return self._all(pid, rm.SET_TIMESLICE, lambda index: rm.Timeslice(us=before[index]))

    def timeslice(self, pid: int, us: int) -> Samples:
        self._undo["timeslice", pid] = lambda: self._timeslice_back(pid)
        samples = self._all(pid, rm.SET_TIMESLICE, lambda _: rm.Timeslice(us=us))
        self._unless_refused(("timeslice", pid), samples)
        return samples

    def schedule(self, pid: int, enable: int) -> Samples:
        if not enable:
            self._undo["schedule", pid] = lambda: self.schedule(pid, 1)
        samples = self._all(pid, rm.GPFIFO_SCHEDULE, lambda _: rm.Schedule(enable=enable))
        self._unless_refused(("schedule", pid), samples, done=bool(enable))
        return samples

    def repeat(self, control: str, pid: int, count: int) -> dict[str, Any]:
        """Samples by what was called."""
        samples: dict[str, Samples] = {}

        def take(name: str, found: Samples) -> None:
            into = samples.setdefault(name, Samples())
            into.borrow += found.borrow
            into.call += found.call
            for status, times in found.status.items():
                into.status[status] = into.status.get(status, 0) + times

        end = time.monotonic() + _REPEAT_SECONDS
        for _ in range(count):
            if time.monotonic() > end:
                break
            if control == "timeslice":
                take("SET_TIMESLICE", self._timeslice_back(pid))
            elif control == "preempt":
                take("PREEMPT", self._all(pid, rm.PREEMPT, lambda _: rm.Preempt(wait=1)))
            else:
                take("GPFIFO_SCHEDULE off", self.schedule(pid, 0))
                time.sleep(_PAUSE_SECONDS)
                take("GPFIFO_SCHEDULE on", self.schedule(pid, 1))
            time.sleep(_PAUSE_SECONDS)
        return {name: found.said() for name, found in samples.items()}

    def channels(self, pid: int, other: int, enable: int) -> Samples:
        """The channels of PID's groups, named to OTHER's subdevice through OTHER's file."""
        if not enable:
            self._undo["channels", pid] = lambda: self.channels(pid, other, 1)
        samples = Samples()
        listed = self._targets[pid].channels[: rm.DISABLE_CHANNELS_MAX]
        parameters = rm.DisableChannels(disable=not enable, count=len(listed))
        for index, channel in enumerate(listed):
            parameters.clients[index], parameters.channels[index] = channel.client, channel.handle
        for subdevice in self._targets[other].subdevices:
            samples = Samples()
            if self._call(other, subdevice, rm.DISABLE_CHANNELS, parameters, samples) == "NV_OK":
                break
        self._unless_refused(("channels", pid), samples, done=bool(enable))
        return samples

    def undo(self) -> dict[str, Any]:
        statuses = {}
        for key in reversed(list(self._undo)):
            back = self._undo.pop(key)
            statuses[key[0]] = back().status
        return {"status": statuses}

    # The protocol.

    def obey(self, command: str, *rest: str) -> dict[str, Any]:
        if command == "groups":
            return self.groups(int(rest[0]), rest[1])
        if command == "foreign":
            return self.foreign(int(rest[0]))
        if command == "repeat":
            return {"samples": self.repeat(rest[0], int(rest[1]), int(rest[2]))}
        if command == "undo":
            return self.undo()
        before = time.monotonic_ns()
        changes: dict[str, Callable[..., Samples]] = {
            "timeslice": self.timeslice,
            "schedule": self.schedule,
            "channels": self.channels,
        }
        samples = changes[command](*map(int, rest))
        return {"before_ns": before, "after_ns": time.monotonic_ns(), **samples.said()}


def _ended(*_: object) -> None:
    raise SystemExit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, _ended)
    controls = Controls(sys.argv[1])
    try:
        print(json.dumps({"event": "ready", "pid": os.getpid()}), flush=True)
        for line in sys.stdin:
            command, *rest = line.split()
            print(json.dumps({"event": command, **controls.obey(command, *rest)}), flush=True)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        print(json.dumps(controls.undo()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
