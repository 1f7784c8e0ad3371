"""The process of one group: python -m gpubench.child MODULE:FUNCTION CONFIG. Rows go to stdout, one JSON object a
line."""

import importlib
import json
import signal
import sys
from pathlib import Path
from types import FrameType

from gpubench import cgroups
from gpubench.config import Config, MissingError
from gpubench.context import Context
from gpubench.worker import show

_END_SECONDS = 25  # more than isolate allows, which may itself have ended


def _interrupted(number: int, frame: FrameType | None) -> None:
    del number, frame
    signal.alarm(_END_SECONDS)
    raise SystemExit(124)


def main() -> int:
    name, path = sys.argv[1:]
    signal.signal(signal.SIGTERM, _interrupted)
    module, _, function = name.partition(":")
    config = Config.read(Path(path))
    if lack := cgroups.provide(Path(config.work) / "cgroup"):
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
