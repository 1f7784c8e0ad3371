"""Jobs of the reader, and its answers."""

import struct
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from gpushare.inject.edits import Edits

HEAD = struct.Struct("<Q")  # length of the message that follows, in bytes
MESSAGE_MAX = 64 << 20

By: TypeAlias = Literal["annotations", "environment", "nvidia"]


class Config(Struct, tag=True, kw_only=True):
    """A container's config.json: its text, and how it may ask for something. `annotations`: by ours, or without a share
    in NVIDIA's ways; `environment`: by ours, or else by variables; `nvidia`: in NVIDIA's ways alone. Answer: Asks. The
    config stays in the reader for an Edit."""

    text: bytes
    by: By
    bundle: str | None = None


class Asks(Struct, tag=True, kw_only=True):
    """`share`: as oci.request and oci.request_by_environment return it. `ways`, `container`: as nvidia.ways and
    nvidia.identity; None: the config is malformed, or does not ask so."""

    share: dict[str, str | int | float] | None = None
    ways: list[str] | None = None
    container: str = ""


class Edit(Struct, tag=True, kw_only=True):
    """What to put into a config. `text`: its text; None: the last Config's. `lib_dir`, `preload_file`, `cache_file`: as
    oci.Files has them. `created`, `movable`: as placing.mounts takes them. Answer: Edited."""

    bundle: str | None
    edits: Edits
    lib_dir: str
    preload_file: str
    cache_file: str
    text: bytes | None = None
    created: bool = False
    movable: bool = True


class Edited(Struct, tag=True, kw_only=True):
    """`config`: the edited text, empty for a container that is created. `root`: its root directory on the host, empty
    without a bundle; `seen`: that exists. `mounts`: as placing.mounts returns them. `preload`: lines of the image's own
    ld.so.preload, which need not be UTF-8. `cache`: its loader cache."""

    config: bytes = b""
    root: str = ""
    seen: bool = True
    mounts: list[dict[str, Any]] = []
    preload: list[bytes] = []
    cache: bytes | None = None


class Member(Struct, tag=True, kw_only=True):
    """Arguments of lookups.is_member. Answer: Found, with 1 where it is one."""

    uid: int
    gid: int
    users: list[int | str]
    groups: list[int | str]


class Names(Struct, tag=True, kw_only=True):
    """Arguments of lookups.unknown. Answer: Unknown."""

    users: list[str]
    groups: list[str]


class Unknown(Struct, tag=True):
    """Names that the user database does not have."""

    users: list[str]
    groups: list[str]


class Command(Struct, tag=True, kw_only=True):
    """A process whose command line is wanted. Answer: Found."""

    pid: int


class Found(Struct, tag=True, kw_only=True):
    """An answer that is a text."""

    text: str


class Refused(Struct, tag=True, kw_only=True):
    """The answer to any job that failed: the error's code and its line."""

    code: str
    line: str


Job: TypeAlias = Config | Edit | Member | Names | Command
Answer: TypeAlias = Asks | Edited | Found | Unknown | Refused
