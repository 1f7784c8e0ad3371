"""The tests' own carrier (native/, tests/support/remote/CMakeLists.txt): its contract, and its server and programs over
it on loopback, without gpushare in between.

What it forwards is listed in native/calls.txt and written in native/client.c: enough for gpushare-spin, for most C
programs of tests, and for Python with cuda.bindings. It has no NVML, and no host functions."""

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from run import built, zygote

NAME = "tests"
LOST = "CUDA_ERROR_DEVICE_UNAVAILABLE"


def server() -> Path:
    return built.program("carrier-server")


def client() -> Path:
    """The directory with libcuda.so.1 and VERSION."""
    return built.program("carrier")


def version() -> str:
    return (client() / "VERSION").read_text().strip()


def contract(directory: Path, name: str = NAME, **halves: dict[str, Any]) -> Path:
    """Writes NAME.toml into the directory, which is made; returns its path. `server`, `client`: keys with other values
    than usual."""
    program, libraries = str(server()), str(client())
    serves = {"argv": [program, "--port", "{port}"], "version": [program, "--version"], **halves.get("server", {})}
    uses = {
        "dir": libraries,
        "libraries": ["libcuda.so.1"],
        "env": {"CARRIER_SERVER": "{host}:{port}"},
        "version": "VERSION",
        "lost": LOST,
        **halves.get("client", {}),
    }
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    lines = [f'name = "{name}"', "[server]", *map(_line, serves.items()), "[client]", *map(_line, uses.items())]
    path = directory / f"{name}.toml"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o644)
    return path


def _line(item: tuple[str, Any]) -> str:
    key, value = item
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name} = {json.dumps(text)}" for name, text in value.items())
        return f"{key} = {{ {inner} }}"
    return f"{key} = {json.dumps(value)}"


def environment(port: int, host: str = "127.0.0.1") -> dict[str, str]:
    """For a program: this process's, without a grant or driver of its own, and with the carrier's client."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSHARE_", "CUDA_", "LD_"))}
    return kept | {"LD_LIBRARY_PATH": str(client()), "CARRIER_SERVER": f"{host}:{port}"}


class Bare:
    """A server with nothing of gpushare between it and its programs, and those programs. It takes the place of a
    simulator for `run.simworker.Worker`."""

    def __init__(self, env: Mapping[str, str], *under: str | Path) -> None:
        """`env`: in which the server finds its driver. `under`: a command that runs it and becomes it, such as
        `gpushare run ... --`."""
        self.children: list[zygote.Forked | subprocess.Popen[str]] = []
        command = [*map(str, under), str(server()), "--port", "0"]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self.server = subprocess.Popen(command, env=dict(env), stdin=nothing, stdout=pipe, text=True)
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        assert line.startswith("listening on "), f"the server ended with {self.server.wait(10)}: {line}"
        self.port = int(line.split()[-1])

    def environment(self, **more: str) -> dict[str, str]:
        return environment(self.port) | more

    def run(self, *command: str | Path, env: Mapping[str, str] | None = None) -> str:
        """What a program prints that has to succeed."""
        words = list(map(str, command))
        done = subprocess.run(words, env=self.environment(**(env or {})), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def fork(self, env: Mapping[str, str] | None = None) -> zygote.Forked:
        child = zygote.fork(self.environment(**(env or {})))
        self.children.append(child)
        return child

    def served(self) -> list[int]:
        """The pids of the server's children, one for each connection: those that the device's books name."""
        with open(f"/proc/{self.server.pid}/task/{self.server.pid}/children") as listed:
            return list(map(int, listed.read().split()))

    def close(self) -> None:
        """Ends the programs and the server."""
        for child in [*self.children, self.server]:
            if child.poll() is None:
                child.kill()
            child.wait(10)
            for stream in (child.stdin, child.stdout):
                with suppress(BrokenPipeError):
                    stream and stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
