"""Makes and removes the files of unused container grants while the event loop continues: the directory
(inject/grantfiles.py) and the CDI spec (inject/cdi.py), by one list of steps per grant."""

from collections.abc import Callable

from gpushare.inject import cdi, grantfiles, mounts, steps
from gpushare.inject.filethread import FileThread, Over
from gpushare.inject.grantdir import grant_dir
from gpushare.inject.node import Node
from gpushare.inject.steps import Steps
from gpushare.paths import Layout

_SPEC = "spec"
"""Placeholder for the spec's path, which differs for each grant."""


class _Pool:
    """Reusable lists of the same steps; each serves one grant at a time."""

    def __init__(self, make: Callable[[], Steps]) -> None:
        self._make = make
        self._free: list[Steps] = []

    def take(self) -> Steps:
        return self._free.pop() if self._free else self._make()

    def give(self, made: Steps) -> None:
        self._free.append(made)


class Unused:
    """Queues the work on `thread`, in order; list numbers are the thread's."""

    def __init__(self, layout: Layout, node: Node) -> None:
        self.thread = FileThread()
        self._layout, self._node = layout, node
        self._making: dict[tuple[int, int, bool], _Pool] = {}
        """Lists that make a grant, by the sizes of the pages, and by whether self/ is a file system of its own."""
        self._removal: dict[bool, _Pool] = {}

    def make(self, grant_id: str, pages: grantfiles.Pages, spec: str, over: Over) -> int:
        """Queues the making of a grant's files. `over`: as in FileThread.run. Returns the list's number. Raises
        OSError."""
        grantfiles.prepare(self._layout)
        kind = len(pages.limits), pages.usage_bytes, mounts.possible(self._layout.grants)
        if (pool := self._making.get(kind)) is None:
            pool = self._making[kind] = _Pool(lambda: Steps(*self._makes(*kind)))
        made = pool.take()
        pages.put_into(made)
        made.aim(_SPEC, cdi.spec_file(self._layout, grant_id))
        made.put(_SPEC, spec.encode())
        return self._run(made, pool, grant_id, over)

    def _makes(self, limits_bytes: int, usage_bytes: int, own_fs: bool) -> list[steps.Step]:
        directory = grantfiles.for_container(self._node, own_fs, limits_bytes, usage_bytes)
        return [*directory, cdi.appears(self._layout, _SPEC, "soon")]

    def remove(self, grant_id: str, over: Over) -> int:
        """Queues the removal, otherwise as `make`. If a step failed, any of the files may be left."""
        own_fs = mounts.possible(self._layout.grants)
        if (pool := self._removal.get(own_fs)) is None:
            pool = self._removal[own_fs] = _Pool(lambda: Steps(steps.unlink(_SPEC), *grantfiles.removal(own_fs)))
        made = pool.take()
        made.aim(_SPEC, cdi.spec_file(self._layout, grant_id))
        return self._run(made, pool, grant_id, over)

    def _run(self, made: Steps, pool: _Pool, grant_id: str, over: Over) -> int:
        def done(error: OSError | None) -> None:
            pool.give(made)
            over(error)

        return self.thread.run(made, grant_dir(self._layout, grant_id), done)
