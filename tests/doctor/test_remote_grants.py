"""What `gpushare doctor` says of remote grants."""

import socket

import pytest

from gpushare.doctor import remote
from gpushare.errors import FailedError


class Told:
    """A daemon that answers with this."""

    def __init__(self, **answer: object) -> None:
        self._answer = {"relay": None, "reason": "", "carriers": [], "attachments": [], "attachments_max": 64} | answer

    def remote(self) -> object:
        return self._answer


class Fails:
    def remote(self) -> object:
        raise FailedError("it does not answer")


@pytest.fixture(autouse=True)
def _nothing_here(monkeypatch):
    """This machine has no carriers, and openssl."""
    monkeypatch.setattr(remote.files, "names", list)
    monkeypatch.setattr(remote.shutil, "which", "/usr/bin/{}".format)


def said(daemon: object) -> list[tuple[str, str]]:
    return [(finding.level, finding.found) for finding in remote.look(daemon)]


def test_nothing_where_they_are_off():
    assert said(None) == []
    assert said(Told(attachments_max=0, reason="this node takes no programs of other machines")) == []


def test_a_relay_that_serves_and_one_that_does_not():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        carriers = [{"name": "a", "version": "1", "trouble": ""}, {"name": "b", "version": "", "trouble": "no program"}]
        relay = {"host": "", "port": port, "cert_sha256": "0" * 64}
        ended = {"ended_ns": 1}
        found = said(Told(relay=relay, carriers=carriers, attachments=[{"ended_ns": None}, ended]))
        assert found == [
            ("ok", f"the relay listens at port {port}, 1 of at most 64 attachments"),
            ("ok", "server, 1"),
            ("wrong", "no program"),
        ]
        assert said(Told(relay=relay))[-1][0] == "note"  # no carrier
    assert ("wrong", f"nothing answers at port {port}, where the relay listens: no process listens") in said(
        Told(relay=relay)
    )
    assert said(Told(reason="the port is in use")) == [("wrong", "the relay does not serve: the port is in use")]
    assert said(Fails()) == [("wrong", "the relay does not serve: it does not answer")]


def test_what_is_missing(monkeypatch):
    monkeypatch.setattr(remote.shutil, "which", lambda _: None)
    assert said(Told(reason="r"))[0] == ("missing", "no openssl: the relay cannot make its certificate")


def test_addresses_as_the_kernel_writes_them():
    assert remote._host("0100007F", socket.AF_INET) == "127.0.0.1"
    assert remote._host("00000000", socket.AF_INET) == "127.0.0.1"
    assert remote._host("0" * 32, socket.AF_INET6) == "::1"
    assert remote._host("B80D0120000000000000000001000000", socket.AF_INET6) == "2001:db8::1"
