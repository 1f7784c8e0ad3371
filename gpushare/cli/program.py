"""The program of `gpushare run` and `gpushare sim exec`, by which this process is replaced."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from typing import NoReturn

from gpushare.errors import GpushareError, UsageError

# The statuses that env, timeout and container engines use for failures of their own.
EXIT_GPUSHARE = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


def command(words: list[str]) -> list[str]:
    """The program and its arguments, behind --. Raises UsageError where there is none."""
    argv = words[1:] if words[:1] == ["--"] else words
    if not argv:
        raise UsageError("no command: write it behind --")
    return argv


def missing(argv: list[str]) -> int:
    """The exit status where the program is not there, which is said on stderr; 0 where it is."""
    if shutil.which(argv[0]) is not None:
        return 0
    found = os.path.exists(argv[0]) and "/" in argv[0]  # noqa: PTH110 - a name, not yet a path
    print(f"gpushare: {argv[0]}: {'not executable' if found else 'command not found'}", file=sys.stderr)
    return EXIT_NOT_EXECUTABLE if found else EXIT_NOT_FOUND


def replace(argv: list[str], env: Mapping[str, str]) -> NoReturn:
    """Raises GpushareError where the program cannot be run."""
    # Python ignores these signals, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - it is the user's
    except OSError as error:
        raise GpushareError(f"{argv[0]} cannot be run: {error.strerror}") from None
