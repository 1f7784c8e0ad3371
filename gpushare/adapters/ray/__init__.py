"""Ray: a worker runs inside a grant of its fraction of a device.

`share` says what a task or an actor asks for; `plugin` is loaded by Ray's runtime environment agent, and starts each
worker that asks with `gpushare adapter ray`, which makes the grant and becomes the worker. The grant ends with it.
"""

from gpushare.adapters.ray.share import share

__all__ = ["share"]
