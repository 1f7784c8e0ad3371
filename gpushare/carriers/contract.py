"""The contract of a carrier: a TOML file that says how its server is started in a grant, and what a program on another
machine needs to use it.

```toml
name = "example"

[server]                                  # on the node with the device
argv = ["example-server", "--port", "{port}"]
env = { EXAMPLE_PORT = "{port}" }         # {port}: where it has to listen, on 127.0.0.1
version = ["example-server", "--version"] # its first line of output has to equal the client's

[client]                                  # on the machine with the program
dir = "/usr/lib/example/client"           # its libraries
libraries = ["libcuda.so.1", "libnvidia-ml.so.1"]  # files in dir that the program has to find in place of the driver's
env = { EXAMPLE_SERVER = "{host}:{port}" }
version = "VERSION"                       # a file in dir, whose first line is the version
lost = "CUDA_ERROR_DEVICE_UNAVAILABLE"    # what a program sees when the link is gone: for messages
```

Pure; gpushare/carriers/files.py finds and reads these files.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct, field

from gpushare.errors import RefusedError, UsageError
from gpushare.text import toml
from gpushare.text.printable import printable

VERSION_MAX = 100
"""Characters of a version."""
_WORDS_MAX, _TEXT_MAX = 64, 4096
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = ("LD_", "GPUSHARE_")
"""Variables that decide what is loaded and which grant is used: gpushare's own to set."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_AT = re.compile(r" - at `\$\.([\w.]*)[^`]*`$")
_UNKNOWN = re.compile(r" unknown field `([^`]*)`")


class Server(Struct, forbid_unknown_fields=True, frozen=True):
    """How the server is started. `argv`, `env`: `{port}` stands for the port; nothing else is replaced, and no shell
    runs."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    version: tuple[str, ...] = ()


class Client(Struct, forbid_unknown_fields=True, frozen=True):
    """What a program gets. `env`: `{host}` and `{port}` stand for where its libraries connect to."""

    dir: str
    libraries: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    version: str = ""
    lost: str = ""


class Contract(Struct, forbid_unknown_fields=True, frozen=True):
    """One carrier. A machine may have one half only: a node needs no client, a client no server."""

    name: str
    server: Server | None = None
    client: Client | None = None


def of(file: toml.File, name: str) -> Contract:
    """Returns what the file of the carrier `name` says. Raises UsageError with the file, the line, the key, and what
    would be right."""
    try:
        contract = msgspec.convert(file.values, Contract)
    except msgspec.ValidationError as error:
        at, unknown = _AT.search(str(error)), _UNKNOWN.search(str(error))
        named = [key for found in (at, unknown) if found for key in found[1].split(".")]
        raise UsageError(f"{file.place(*named)}: {printable(str(error))}") from None
    for keys, wrong in _mistakes(contract, name):
        raise UsageError(f"{file.place(*keys)}: {'.'.join(keys)}: {printable(wrong)}")
    return contract


def _mistakes(contract: Contract, name: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """What the types alone do not say: the keys, and what is wrong with their value."""
    if contract.name != name:
        yield ("name",), f"it is {contract.name[:80]!r}: a file is called as its carrier, here {name!r}"
    if contract.server is None and contract.client is None:
        yield ("name",), "there is neither [server] nor [client]: write the half that this machine has"
    if (server := contract.server) is not None:
        yield from _wrong_words("argv", server.argv)
        if server.version:
            yield from _wrong_words("version", server.version)
        yield from _wrong_variables("server", server.env)
        if not any("{port}" in text for text in (*server.argv, *server.env.values())):
            yield ("server", "argv"), "{port} is neither here nor in server.env: the server has to listen there"
    if (client := contract.client) is not None:
        yield from _wrong_client(client)
        yield from _wrong_variables("client", client.env)


def _wrong_words(key: str, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if not words or not words[0]:
        yield ("server", key), "it begins with the program, which is not given"
    elif len(words) > _WORDS_MAX:
        yield ("server", key), f"{len(words)} words, {_WORDS_MAX} at most"
    for word in words:
        if not _whole(word):
            yield ("server", key), f"{word[:80]!r} cannot be an argument: it is too long or has a NUL"


def _wrong_variables(half: str, env: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            yield (half, "env", name), f"{name[:80]!r} is not the name of a variable"
        elif name.startswith(_OURS):
            yield (half, "env", name), "gpushare sets such variables itself: leave it out"
        elif not _whole(value):
            yield (half, "env", name), "it is too long or has a NUL"


def _wrong_client(client: Client) -> Iterator[tuple[tuple[str, ...], str]]:
    if not client.dir.startswith("/") or not _whole(client.dir):
        yield ("client", "dir"), f"{client.dir[:80]!r} is not the full path of a directory"
    if not client.libraries or len(client.libraries) > _WORDS_MAX:
        yield ("client", "libraries"), f"give 1 to {_WORDS_MAX} files in client.dir, such as libcuda.so.1"
    for name in client.libraries:
        if not _plain(name):
            yield ("client", "libraries"), f"{name[:80]!r} is not the name of a file in client.dir"
    if client.version and not _plain(client.version):
        yield ("client", "version"), f"{client.version[:80]!r} is not the name of a file in client.dir"
    if not client.lost.isprintable() or len(client.lost) > VERSION_MAX:
        yield ("client", "lost"), f"give the name of an error, {VERSION_MAX} characters at most"


def _whole(text: str) -> bool:
    return len(text) <= _TEXT_MAX and "\0" not in text


def _plain(name: str) -> bool:
    return 0 < len(name) <= 255 and name not in (".", "..") and "/" not in name and "\0" not in name


def _filled(text: str, **values: str) -> str:
    """The text with the placeholders of `values` replaced; other braces stay."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def argv(server: Server, port: int) -> list[str]:
    """Returns the server's command line. `port`: where it has to listen."""
    return [_filled(word, port=str(port)) for word in server.argv]


def server_env(server: Server, port: int) -> dict[str, str]:
    """Returns the variables that the server gets in addition."""
    return {name: _filled(value, port=str(port)) for name, value in server.env.items()}


def client_env(client: Client, host: str, port: int) -> dict[str, str]:
    """Returns the variables that a program gets in addition. `host`, `port`: where its libraries connect to."""
    return {name: _filled(value, host=host, port=str(port)) for name, value in client.env.items()}


def version_of(output: bytes) -> str:
    """Returns the version that a file or the output of a command begins with: its first line. Raises UsageError where
    that is none."""
    line = output.split(b"\n", 1)[0].strip().decode(errors="replace")
    if not line or len(line) > VERSION_MAX or not line.isprintable() or "\ufffd" in line:
        raise UsageError(f"its first line is no version: {printable(line[:VERSION_MAX]) or 'it is empty'}")
    return line


def same_version(name: str, server: str, client: str) -> None:
    """Raises RefusedError, with both, where they differ: what they send each other is not the same from one version to
    the next. Where a contract has no version, its half goes with any."""
    if server and client and server != client:
        raise RefusedError(
            f"carrier {name}: the node has version {server!r}, this machine {client!r}: install the same on both"
        )
