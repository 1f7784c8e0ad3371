"""Names of this machine's users."""

import pwd
from functools import lru_cache


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """A user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
