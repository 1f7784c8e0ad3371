"""The process of one group: python -m gpubench.child MODULE:FUNCTION CONFIG. Rows go to stdout, one JSON object a
line."""

import ctypes
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from gpubench.config import Config, MissingError
from gpubench.context import Context
from gpubench.worker import show

_END_SECONDS = 25  # more than isolate allows, which may itself have ended
_CLONE_NEWNS = 0x00020000  # linux/sched.h
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000  # linux/mount.h


def _done(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def provide_cgroups(directory: Path) -> str:
    """Where no control groups are mounted, as on a bare virtual machine, mounts cgroup v2 on a directory that only this
    process and its children see: gpushare needs a hierarchy. Returns the reason when that cannot be done, otherwise an
    empty string."""
    from gpushare.enforce.cgroup import Hierarchies

    found = Hierarchies.of()
    if found.unified or found.freezer:
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    directory.mkdir(exist_ok=True)
    try:
        _done(libc.unshare(_CLONE_NEWNS), "unshare")
        _done(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount / private")
        _done(libc.mount(b"none", bytes(directory), b"cgroup2", 0, None), "mount cgroup2")
    except OSError as error:
        return f"no control groups are mounted, and they cannot be: {error.strerror}"
    return ""


def _interrupted(number: int, frame: FrameType | None) -> None:
    del number, frame
    signal.alarm(_END_SECONDS)
    raise SystemExit(124)


def main() -> int:
    name, path = sys.argv[1:]
    signal.signal(signal.SIGTERM, _interrupted)
    module, _, function = name.partition(":")
    config = Config.read(Path(path))
    if lack := provide_cgroups(Path(config.work) / "cgroup"):
        show(lack)
    context = Context(config)
    try:
        getattr(importlib.import_module(module), function)(context)
    except MissingError as reason:
        print(json.dumps({"unable": str(reason)}), flush=True)
    except Exception as error:
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), flush=True)
        raise
    finally:
        context.stage.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
