"""Ray: a worker runs inside a grant of its fraction of a device.

`share` makes the options of a task or an actor. `plugin` is loaded by Ray's runtime environment agent, and has such
workers started by `gpushare adapter ray`, which makes the grant and becomes the worker. The grant ends with it.
"""

from gpushare.adapters.ray.share import share

__all__ = ["share"]
