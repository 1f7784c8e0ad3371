"""The plugin that Ray loads (RAY_RUNTIME_ENV_PLUGINS). It is called once per environment, not per worker, so it makes
no grant: it changes the command that starts workers."""

import shlex
import sys
from typing import Any

from ray._private.runtime_env.plugin import RuntimeEnvPlugin

from gpushare.adapters.ray.share import NAME, request, words
from gpushare.client import Client
from gpushare.errors import ForbiddenError, GpushareError, NotFoundError, UsageError

# Keeps Ray from setting CUDA_VISIBLE_DEVICES by its own device numbers, which are not the grant's.
_KEEP_VISIBLE = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"


class Plugin(RuntimeEnvPlugin):  # type: ignore[misc]  # Ray is no dependency of ours
    """runtime_env's field `gpushare`."""

    name = NAME
    priority = 90  # after plugins that choose another Python

    @staticmethod
    def validate(runtime_env_dict: dict[str, Any]) -> None:
        """Raises ValueError or TypeError for a malformed field."""
        words(runtime_env_dict[NAME])

    def modify_context(self, uris: list[str], runtime_env: Any, context: Any, logger: Any) -> None:
        """Has workers of this environment started by `gpushare adapter ray`.

        Raises ValueError for what can never be granted: Ray would otherwise retry the worker forever.
        """
        del uris
        if NAME not in runtime_env:
            return
        try:
            Client().plan(**request(runtime_env[NAME]))
        except (UsageError, NotFoundError, ForbiddenError) as error:
            raise ValueError(f"{NAME}: {error}") from None
        except GpushareError as error:
            logger.warning("%s: %s", NAME, error)  # possibly temporary
        ours = [sys.executable, "-P", "-m", "gpushare", "adapter", "ray", *words(runtime_env[NAME]), "--"]
        context.env_vars[_KEEP_VISIBLE] = "1"
        context.py_executable = f"{shlex.join(ours)} {context.py_executable}"
