"""Command lines of ssh, which is how another machine's node is reached: whoever may log in there is that machine's user
to its daemon."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from gpushare.errors import UsageError

PREFIX = "ssh:"
# Destinations that ssh cannot mistake for an option; `[`, `]` and `:` are for IPv6 addresses.
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:\[\]%-]{0,254}", re.ASCII)
FAILED = 255
"""Its exit status when the connection fails; also that of a command which ends with it."""
READY = b"ready"
_SHOWN_MAX = 300
_PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _./:=,+@-"

# No prompts, which nobody could answer; a dead connection is noticed within 15 s.
_OPTIONS = (
    *("BatchMode=yes", "ExitOnForwardFailure=yes", "StreamLocalBindUnlink=yes", "StreamLocalBindMask=0177"),
    *("ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3", "ControlPath=none"),
)
_SILENT = ("PermitLocalCommand=no",)
_TELLS = ("PermitLocalCommand=yes", f"LocalCommand=echo {READY.decode()}")
"""ssh runs this command here when the connection and its forwarding stand."""


def split(text: str) -> tuple[str, str]:
    """Splits `HOST` or `HOST:/PATH` into the host and the path, empty if there is none. Raises UsageError."""
    host, slash, path = text.partition(":/")
    if not HOST.fullmatch(host):
        raise UsageError(f"{host[:80]!r} is no host for ssh: write ssh:HOST or ssh:USER@HOST")
    return host, f"/{path}" if slash else ""


def forwarding(local: Path, remote: Path, host: str, *, tells: bool = False) -> list[str]:
    """Returns the command that forwards the socket `local` to `remote` on the host until it is terminated. `tells`: it
    prints a line, READY, when the socket is there."""
    options = _words(*_OPTIONS, *(_TELLS if tells else _SILENT))
    return ["ssh", "-N", "-T", "-a", "-x", *options, "-L", f"{local}:{remote}", "--", host]


def running(host: str, script: str, *, terminal: bool, log: str) -> list[str]:
    """Returns the command that runs a script of sh on the host, whatever the user's shell there is. `terminal`: with a
    terminal of its own there. `log`: path of the file that gets what ssh itself has to say."""
    return ["ssh", "-t" if terminal else "-T", "-E", log, *_words("LogLevel=ERROR"), "--", host, _by_any_shell(script)]


def resolving(host: str) -> list[str]:
    """Returns the command that prints how ssh would reach the host, a word and its value on each line."""
    return ["ssh", "-G", "--", host]


def last_line(said: bytes) -> str:
    """Returns the last line that ssh has printed, made printable; empty if there is none."""
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    return "".join(one if one.isprintable() else "?" for one in lines[-1].strip())[:_SHOWN_MAX] if lines else ""


def _words(*options: str) -> list[str]:
    return [word for option in options for word in ("-o", option)]


def _by_any_shell(script: str) -> str:
    """A line that sh, csh and fish take alike: they quote differently, so all that any of them could take for something
    else is written as its bytes in octal."""
    plain = "".join(
        chr(byte) if chr(byte) in _PLAIN else f"\\0{byte:03o}" for byte in script.encode(errors="surrogateescape")
    )
    return f'exec sh -c \'eval "$(printf %b "{plain}")"\''


def quoted(words: Sequence[str]) -> str:
    """Returns the words as sh reads them back."""
    return " ".join(map(shlex.quote, words))
