"""Grants on device 0 of a real arbiter, with tenant.c processes."""

import os
import signal
import subprocess

from pages.madepages import limits_page, usage_page
from run import built

from gpushare.binding.page_words import DeviceLimits


class Grant:
    """A grant on device 0 with its pages, bell and processes."""

    def __init__(self, directory, arbiter, share, name):
        self.arbiter = arbiter
        limits = DeviceLimits(bytes(16), 1 << 30, 0, share.guarantee_milli, share.limit_milli)
        self.limits = limits_page(directory / f"{name}.limits", name, [limits])
        self.usage = usage_page(directory / f"{name}.usage", name)
        self.bell = os.eventfd(0)
        self.handle = arbiter.add(self.limits, self.usage, [0], [share], self.bell)
        self.processes = []

    def start(self, *pattern):
        """`pattern`: busy and idle milliseconds; empty for a tenant that always has work."""
        slot = self.usage.claim(self.limits, 1)
        command = [built.program("page_tenant"), self.limits.path, self.usage.path, slot.index, self.bell, *pattern]
        process = subprocess.Popen([str(part) for part in command], pass_fds=[self.bell])
        process.slot = slot.index
        self.processes.append(process)
        return process

    def stats(self):
        return self.arbiter.grant_stats(self.handle, 0)

    def end(self, process, *, clear=True):
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.processes.remove(process)
        if clear:
            self.arbiter.clear_slot(self.handle, process.slot)

    def close(self):
        for process in list(self.processes):
            self.end(process, clear=False)
        self.limits.close()
        self.usage.close()
        os.close(self.bell)
