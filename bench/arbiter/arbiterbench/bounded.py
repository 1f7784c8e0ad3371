"""`gpushare` whose arbiter bounds work in flight at argv[1] nanoseconds while a device is contended."""

import functools
import sys

from gpushare.cli.main import entry
from gpushare.daemon import app

if __name__ == "__main__":
    app.ArbiterConfig = functools.partial(app.ArbiterConfig, bound_ns=int(sys.argv.pop(1)))  # type: ignore[misc,assignment]
    entry()
