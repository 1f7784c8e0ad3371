"""A call that waits for a daemon which is away."""

import socket
from pathlib import Path

import pytest

from gpushare.client.blocking import Absence, check_socket
from gpushare.errors import UnreachableError


@pytest.mark.parametrize("asked", ["_was_here", "_comes"])
def test_one_whose_socket_comes_while_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as daemon:

        def comes() -> bool:
            daemon.bind(str(path))
            return False

        absence = Absence(path, 60)
        with pytest.raises(UnreachableError) as missing:
            check_socket(path)
        monkeypatch.setattr(absence, asked, comes)
        absence.check(missing.value)  # it is to be tried again


def test_what_is_no_socket_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    path.touch()
    with pytest.raises(UnreachableError) as wrong:
        check_socket(path)
    with pytest.raises(UnreachableError, match="is not a socket"):
        Absence(path, 60).check(wrong.value)
