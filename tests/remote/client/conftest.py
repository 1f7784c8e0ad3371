"""A node that takes programs of other machines, and another machine: one that reaches it by ssh."""

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from remote import carrier, sshd
from run.running import Daemon, daemon_apart
from run.waiting import until


@dataclasses.dataclass
class Elsewhere:
    """`node`: the daemon. `env`: of the other machine's commands: its HOME has nodes.toml and carriers."""

    node: Daemon
    home: Path
    env: dict[str, str]

    @property
    def ssh(self) -> str:
        """The node, as it is named to ssh."""
        return f"ssh:far:{self.node.layout.socket}"

    @property
    def relay(self) -> tuple[str, int]:
        """Where the node's relay listens: it is started after the daemon."""
        return "127.0.0.1", until(lambda: self.node.client.remote()["relay"], "the relay serves")["port"]

    def write(self, text: str) -> None:
        """nodes.toml."""
        (self.home / ".config/gpushare/nodes.toml").write_text(text)

    def cli(self, *arguments: object, **options: Any) -> Any:
        return self.node.cli(*arguments, **{"env": self.env, **options})


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    home = tmp_path_factory.mktemp("home")
    (home / ".config/gpushare").mkdir(parents=True)
    contract = carrier.contract(home / ".config/gpushare/carriers")
    (bin_ := home / "bin").mkdir()
    path = f"{sshd.path(bin_)}:{Path(sys.executable).parent}"
    config = f'[remote]\nlisten = "127.0.0.1:0"\ncarriers = "{contract.parent}"\n'
    with daemon_apart(simulate="2x16GiB", config=config) as node:
        env = {**os.environ, "HOME": str(home), "PATH": path}
        made = Elsewhere(node, home, env)
        assert made.relay
        yield made
        node.nothing_left()
