"""One call of the node API, as the table of routes has it."""

from dataclasses import dataclass, field
from typing import Any

from gpushare.errors import GpushareError

BODY_MAX = 64 << 10
TEXT = {"type": "string", "minLength": 1, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"}
NUMBER = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}
CONFIG_MAX = 16 << 20
"""For what engines send: a config.json with thousands of mounts is below 1 MiB."""


@dataclass(frozen=True, slots=True)
class Route:
    """`handler`: method of api.Api. `query`: name -> JSON schema; a `required` name must be present. `repeated`: status
    of the same answer to a repeated call. `root`: only root may call it. `body_max`: bytes. `light`: waits for no turn,
    so that it answers however much others ask for. `stream`: its answer does not end. A tuple as `body` or `answer`:
    one of these. `refusals`: in addition to those that every call can have. `name`: JSON schema of the name in its
    path."""

    method: str
    path: str
    handler: str
    summary: str
    body: Any = None
    answer: Any = None
    status: int = 200
    repeated: int | None = None
    media: str = "application/json"
    query: dict[str, dict[str, Any]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    root: bool = False
    body_max: int = BODY_MAX
    light: bool = False
    stream: bool = False
    refusals: tuple[type[GpushareError], ...] = ()
    name: dict[str, Any] = field(default_factory=lambda: TEXT)
