"""The process that reads for the daemon what others can make slow: bundles, images, the user database. It has no ledger
and no authority, and may be killed.

What a bundle names may be on a file system that never answers, and an image may be built to be slow: the daemon gives
a job a time, and ends the process that does not keep it (daemon/readers.py).
"""

import struct
from typing import Any

from msgspec import Struct

from gpushare.inject.edits import Edits

HEAD = struct.Struct("<Q")  # length of the message that follows, in bytes
MESSAGE_MAX = 64 << 20


class Edit(Struct, kw_only=True):
    """What to put into the config. `lib_dir`, `preload_file`, `cache_file`: as oci.apply takes them. `offered`: the
    container is made already, and its engine was told of these mounts, as placing.missing takes them."""

    bundle: str | None
    edits: Edits
    lib_dir: str
    preload_file: str
    cache_file: str
    offered: list[tuple[str, str]] | None = None


class Member(Struct, kw_only=True):
    """Whether a user is meant, as members.is_member takes it."""

    uid: int
    gid: int
    users: list[int | str]
    groups: list[int | str]


class Job(Struct, kw_only=True):
    """`config`: the text of config.json. With none of the others the question is what it asks for; `attempt`: in
    NVIDIA's ways, of the container in this bundle. `command_of`: the process whose command line is wanted; 0: none."""

    config: bytes = b""
    attempt: bool = False
    bundle: str | None = None
    edit: Edit | None = None
    member: Member | None = None
    command_of: int = 0


class Answer(Struct, kw_only=True):
    """`asks`: as oci.request. `ways`, `container`: as nvidia.ways and nvidia.identity. `config`: the edited text.
    `root`, `mounts`: of a container that is made already, as placing says; `seen`: its root is there.
    `preload`: lines of the image's own ld.so.preload, which need not be UTF-8. `cache`: as oci.apply returns it.
    `error`: its code and its line; nothing else counts then."""

    asks: dict[str, str | int] | None = None
    ways: list[str] = []
    container: str = ""
    config: bytes = b""
    root: str = ""
    seen: bool = True
    mounts: list[dict[str, Any]] = []
    preload: list[bytes] = []
    cache: bytes | None = None
    member: bool = False
    command: str = ""
    error: tuple[str, str] | None = None
