"""The process that reads for the daemon whatever others can make slow: bundles, images, the user database. It has no
ledger and no authority, and may be killed.

Paths in a bundle may be on a file system that never answers, and an image may be built to be slow: the daemon sets each
job a time limit, and kills the reader that exceeds it (daemon/host/readers.py).
"""

import struct
from typing import Any

from msgspec import Struct

from gpushare.inject.edits import Edits

HEAD = struct.Struct("<Q")  # length of the message that follows, in bytes
MESSAGE_MAX = 64 << 20


class Edit(Struct, kw_only=True):
    """What to put into the config. `lib_dir`, `preload_file`, `cache_file`: as oci.apply takes them. `created`: the
    container exists already; `movable`: as placing.mounts takes it, for such a container."""

    bundle: str | None
    edits: Edits
    lib_dir: str
    preload_file: str
    cache_file: str
    created: bool = False
    movable: bool = True


class Member(Struct, kw_only=True):
    """Arguments of members.is_member."""

    uid: int
    gid: int
    users: list[int | str]
    groups: list[int | str]


class Job(Struct, kw_only=True):
    """`config`: the text of config.json. With no other field, the answer is what it asks for, by annotations or, with
    `environment`, in their absence by variables; with `attempt`, what the container in `bundle` asks for in NVIDIA's
    ways. `command_of`: the pid whose command line is wanted; 0: none."""

    config: bytes = b""
    environment: bool = False
    attempt: bool = False
    bundle: str | None = None
    edit: Edit | None = None
    member: Member | None = None
    command_of: int = 0


class Answer(Struct, kw_only=True):
    """`asks`: as oci.request and oci.request_by_environment. `ways`, `container`: as nvidia.ways and nvidia.identity.
    `config`: the edited text. `root`, `mounts`: for a container that exists already, as placing returns them; `seen`:
    its root directory exists. `preload`: lines of the image's own ld.so.preload, which need not be UTF-8. `cache`: as
    oci.apply returns it. `error`: its code and its line; the other fields are meaningless then."""

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
