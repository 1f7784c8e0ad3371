"""docs/reference/carriers.md: the contract of a carrier, from its types and their docstrings."""

import inspect
import re
from typing import Any

import msgspec
from msgspec.structs import fields
from text import escaped, made_from, paragraphs, table, wrapped

from gpushare.carriers import contract, files

HEAD = """# Carriers

A carrier is software that carries a program's calls of CUDA to a GPU of another node ([a GPU of
another node](../guides/remote/index.md)). gpushare ships none; it runs any that this page
describes, from a file that says how.

"""
BEHAVIOUR = """\
## What a carrier has to do

The **server**

- listens on 127.0.0.1, at the port that it is given, over TCP, within 15 seconds. It is asked
  whether it does by a connection that ends without a byte, several times;
- serves each connection in a process of its own, or in one that all of them share: every process of
  it is in the grant, and its calls are metered as those of any program are;
- finds the driver as every program of a share does: `libcuda.so.1` and `libnvidia-ml.so.1` by name.
  It must not bring its own, nor open one by its path;
- ends at SIGTERM. Two seconds later it is killed;
- needs nothing but that: it has a user of its own without rights, no other network, no home
  directory, a read-only root in which `/tmp` is its own and small, the memory that `--host-memory`
  gives it, and no secret. `/home`, `/root`, `/run`, `/var`, `/mnt`, `/media` and `/srv` are empty
  for it: its program may be in one of them, its libraries and scripts may not. gpushare tells it no
  user's name and no ticket.

The **client libraries**

- have the names that the program looks for, and connect to where `env` tells them, by plain TCP.
  That is a port on 127.0.0.1 of the program's own machine: nothing there needs encryption or a
  password;
- may make any number of connections, at any time, to the end of the program;
- return an error of CUDA from each call once a connection has ended, and do not connect again to go
  on with what they had.

Both are **of one version**: the client's is sent when a program attaches, and has to be the
server's, letter by letter. A carrier that says no version is taken at its word.

Variables that begin with `LD_` or `GPUSHARE_` are gpushare's own to set. Names are of small
letters, digits and dashes. A mistake in a file is reported with its line and key, and the other
files are used.
"""


def _code(docstring: str) -> tuple[str, str]:
    """The docstring without its block of code, and that block."""
    block = re.search(r"^```.*?^```$", docstring, re.DOTALL | re.MULTILINE)
    assert block is not None
    return docstring.replace(block[0], ""), block[0]


def _default(value: Any, made: Any) -> str:
    if value is not msgspec.NODEFAULT:
        return f"`{msgspec.json.encode(value).decode()}`" if value is not None else "none"
    return "none" if made is not msgspec.NODEFAULT else "has to be there"


_KINDS = {"str": "text", "tuple[str, ...]": "list of text", "dict[str, str]": "table of text"}


def _kind(kind: Any) -> str:
    name = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return _KINDS.get(name, "a table")


def _table(title: str, kind: type) -> str:
    rows = [
        (f"`{field.name}`", _kind(field.type), _default(field.default, field.default_factory))
        for field in fields(kind)
        if _kind(field.type) != "a table"
    ]
    text = "".join(wrapped(escaped(part)) + "\n" for part in paragraphs(inspect.getdoc(kind) or ""))
    return f"### {title}\n\n{text}{table(('key', 'value', 'default'), rows)}"


def page() -> str:
    """The whole page."""
    docstring, example = _code(inspect.getdoc(contract) or "")
    text = made_from("gpushare/carriers/contract.py and scripts/pages/carriers.py") + HEAD
    about = [part for part in paragraphs(docstring) if not part.startswith("Pure;")]
    text += "## The file\n\n" + "".join(wrapped(escaped(part)) + "\n" for part in about)
    text += f"{example}\n\n"
    text += _table("The whole", contract.Contract)
    text += _table("[server]", contract.Server) + _table("[client]", contract.Client)
    places = " and ".join(f"`{directory}`" for directory in files.DIRECTORIES)
    text += (
        wrapped(
            f"Files are `NAME.toml`, in {places}, on a node also in the directory that `carriers` under `[remote]` of "
            "gpushare.toml names, for a user's own programs also in `~/.config/gpushare/carriers`; one in a later "
            "directory stands instead of one of the same name in an earlier one. File and directory have to be root's, "
            "or the user's who runs the command, and writable by nobody else."
        )
        + "\n"
    )
    return text + BEHAVIOUR
