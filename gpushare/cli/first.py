"""The installed command's first step.

PYTHONPATH is for the program that `gpushare run` starts: a `select.py` or `typing.py` there would replace that of the
command's own interpreter. Where it is set, the command starts anew in an interpreter that ignores it; the environment
stays as it is, for the program. (PYTHONHOME stops an interpreter before it runs anything.)
"""

import os
import sys

_HOME = __file__.rpartition("/gpushare/")[0]


def _is_misled() -> bool:
    """Whether modules are looked for in directories that somebody else named. gpushare's own sources may be one."""
    paths = os.environ.get("PYTHONPATH", "")
    named = map(os.path.abspath, filter(None, paths.split(":")))  # pathlib would be the user's, too
    return paths != "" and not sys.flags.ignore_environment and _HOME not in named


def entry() -> None:
    """Runs the command with this process's arguments, and exits with its status."""
    if _is_misled():
        os.execv(sys.executable, [sys.executable, "-E", *sys.argv])  # noqa: S606 - itself
    from gpushare.cli import main

    main.entry()
