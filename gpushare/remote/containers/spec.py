"""CDI specs of attachments, one file for each, as long as it lives.

The kind is `gpushare.dev/remote`, apart from the kind of shares on this machine (inject/cdi.py): a machine may have
both.
"""

import contextlib
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpushare.errors import RefusedError, UsageError
from gpushare.inject import cdi, edits, files
from gpushare.paths import HOOK

KIND = "gpushare.dev/remote"
_START = "gpushare.dev-remote_"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_CONNECT_SECONDS = 1.0


def check_name(name: str) -> None:
    """Raises UsageError for a name that CDI or the hook does not take."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is no name of a CDI device: give at most 63 letters, digits, -, _ and ., the first and the "
            "last of them a letter or a digit"
        )


def path(directory: Path, name: str) -> Path:
    """Returns the path of the spec."""
    return directory / f"{_START}{name}.json"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Inside `with` no other helper begins or ends there. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write(directory: Path, name: str, socket_path: Path, env: Sequence[str]) -> None:
    """Writes the spec of an attachment; engines see it whole or not at all. Raises OSError."""
    hook = {
        "hookName": "createRuntime",
        "path": str(HOOK),
        "args": [HOOK.name, "place", "--grant", name, "--socket", str(socket_path)],
        "timeout": edits.HOOK_TIMEOUT_S,
    }
    # Should the engine also run NVIDIA's hook, it is to add nothing of this machine's.
    container: dict[str, Any] = {"env": [*env, "NVIDIA_VISIBLE_DEVICES=void"], "hooks": [hook]}
    spec = {"cdiVersion": cdi.VERSION, "kind": KIND, "devices": [{"name": name, "containerEdits": container}]}
    data, through = json.dumps(spec, indent=2).encode() + b"\n", directory / f".{_START}{name}.tmp"
    files.replace(path(directory, name), data, 0o644, through=through)


def clean(directory: Path, name: str) -> None:
    """Removes the specs of attachments whose helper has been killed. Raises RefusedError if one of this name lives."""
    for file in directory.glob(f"{_START}*.json"):
        where = _socket_of(file)
        if where is None:
            continue
        if not _answers(where):
            file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                where.unlink(missing_ok=True)
                where.parent.rmdir()
        elif file == path(directory, name):
            raise RefusedError(f"there is a CDI device {KIND}={name} already: give another name with --cdi-name")


def _socket_of(file: Path) -> Path | None:
    """Returns the hook's socket; None: the file is none of ours, or is being replaced."""
    try:
        (device,) = json.loads(file.read_bytes())["devices"]
        arguments = device["containerEdits"]["hooks"][0]["args"]
        return Path(arguments[arguments.index("--socket") + 1])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def _answers(where: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(_CONNECT_SECONDS)
        try:
            one.connect(str(where))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # it is busy
    return True
