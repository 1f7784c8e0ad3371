"""Replaces this process by the program of `gpushare run`, `gpushare sim exec` and some adapters."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from typing import NoReturn

from gpushare.cli import children
from gpushare.cli.command import say
from gpushare.errors import GpushareError, UsageError
from gpushare.paths import SIM_LIB_DIR, SIM_TOOLS

# The statuses that env, timeout and container engines use for failures of their own.
EXIT_GPUSHARE = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


def command(words: list[str]) -> list[str]:
    """Returns the program and its arguments, given after `--`. Raises UsageError if there is none."""
    argv = words[1:] if words[:1] == ["--"] else words
    if not argv:
        raise UsageError("no command: write it behind --")
    return argv


def missing(argv: list[str]) -> int:
    """Returns 0 if the program is found and executable, else the exit status, with a message on stderr. Programs of the
    simulated driver count as found: only the daemon knows whether the devices are simulated."""
    path = f"{os.environ.get('PATH', os.defpath)}:{SIM_LIB_DIR / SIM_TOOLS}"
    if shutil.which(argv[0], path=path) is not None:
        return 0
    found = os.path.exists(argv[0]) and "/" in argv[0]  # noqa: PTH110 - may be a bare name
    say(f"gpushare: {argv[0]}: {'not executable' if found else 'command not found'}", sys.stderr)
    return EXIT_NOT_EXECUTABLE if found else EXIT_NOT_FOUND


def become(argv: list[str], env: Mapping[str, str]) -> int:
    """As `replace`, but where it cannot be run, it says so and returns the exit status."""
    try:
        replace(argv, env)
    except GpushareError as error:
        say(f"gpushare: {error}", sys.stderr)
        return EXIT_GPUSHARE


def replace(argv: list[str], env: Mapping[str, str]) -> NoReturn:
    """Replaces this process by the program. Raises GpushareError if it cannot be run."""
    # Python ignores these signals, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    children.leave()
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - the user's own command
    except OSError as error:
        raise GpushareError(f"{argv[0]} cannot be run: {error.strerror}") from None
