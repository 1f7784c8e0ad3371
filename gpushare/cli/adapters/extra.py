"""The libraries of the distribution's extras, which not every node needs."""

import importlib.util
import sys

from gpushare import DISTRIBUTION
from gpushare.errors import FailedError


def missing(error: ImportError, name: str) -> FailedError:
    """Returns the error for a library of the extra `name` that cannot be imported, with the command that installs it
    for the Python that runs this."""
    # A Debian package's Python has no pip of its own.
    pip = f"{sys.executable} -m pip" if importlib.util.find_spec("pip") else f"python3 -m pip --python {sys.executable}"
    return FailedError(f"a library is missing ({error}): as root, {pip} install '{DISTRIBUTION}[{name}]'")
