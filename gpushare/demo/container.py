"""A tenant: one container under runc, with a program that executes commands from its stdin."""

import json
import subprocess
from pathlib import Path

from gpushare.demo import bundle
from gpushare.demo.program import Program
from gpushare.inject.oci import GRANT
from gpushare.paths import RUNTIME_WRAPPER


class Container(Program):
    """`runtime_root`: a private directory for runc's state. Always call `end`."""

    def __init__(self, name: str, where: Path, runtime_root: Path, socket: Path) -> None:
        self.name = name
        self._id = f"{where.name}-{name}"
        self._bundle = where / name
        self._wrapper = [str(RUNTIME_WRAPPER), f"--gpushare-socket={socket}", "--root", str(runtime_root)]
        super().__init__(f"container {name}", self._bundle / "stderr")

    def start(self, annotations: dict[str, str]) -> None:
        """Returns when the program in it has its device; otherwise raises FailedError with the engine's message."""
        bundle.make(self._bundle, annotations, [bundle.TENANT_PROGRAM], f"/gpushare-demo/{self._id}")
        self.begin([*self._wrapper, "run", "--bundle", str(self._bundle), self._id])
        self.ready()

    @property
    def grant(self) -> str:
        """Returns the grant's id, which the runtime wrapper gave the runtime. Only of one that runs."""
        state = subprocess.run([*self._wrapper, "state", self._id], capture_output=True, check=True).stdout
        return str(json.loads(state)["annotations"][GRANT])

    def end(self) -> None:
        """Ends it in any state: afterwards neither the container nor a process of it exists."""
        if self._process is not None:
            super().end()
            self._stop()

    def _stop(self) -> None:
        subprocess.run([*self._wrapper, "delete", "--force", self._id], capture_output=True, check=False)
