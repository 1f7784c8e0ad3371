"""An attachment lives as long as its connection for control; its end reaches the client, the server and the daemon."""

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from links.relayed import Controller, Echo, FakeDaemon, RelayProcess, Supervisor, Ticket
from links.slowlink import SlowLink
from machine import ordinary
from run.waiting import until

from gpushare.api.remote import LinkReport
from gpushare.processes import helper
from gpushare.relay import lines, messages
from gpushare.relay.book import Book
from gpushare.relay.limits import Times
from gpushare.relay.wire import Purpose

SLOW = 20.0


def attached(relay: RelayProcess, echo: Echo, grant: str) -> tuple[Ticket, Supervisor, Controller, socket.socket]:
    supervisor = Supervisor(echo.address)
    ticket = relay.daemon.add(Ticket(grant), supervisor)
    control = relay.attach(ticket)
    data = relay.use(ticket, Purpose.DATA)
    data.sendall(b"hello")
    assert data.recv(5) == b"hello"
    return ticket, supervisor, control, data


def is_cut(sock: socket.socket) -> bool:
    """Whether the connection ends; it may have data before."""
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("way", ["bye", "closed", "reset"])
def test_client_ends_it(relay: RelayProcess, echo: Echo, way: str) -> None:
    ticket, supervisor, control, data = attached(relay, echo, f"client-{way}")
    if way == "bye":
        control.send(lines.FromClient(bye=True))
        assert control.until(lambda line: line.end).end == "detached"
    else:
        control.close(reset=way == "reset")
    state = relay.daemon.ended(ticket)
    assert (state.ending, state.bytes_in, state.bytes_out, state.address) == ("detached", 5, 5, "127.0.0.1")
    assert state.ended_ns >= state.created_ns
    assert is_cut(data)
    assert supervisor.closed.wait(SLOW)  # so the server ends


def test_daemon_ends_one_or_all(relay: RelayProcess, echo: Echo) -> None:
    first, supervisor, control, data = attached(relay, echo, "daemon-ends")
    second = relay.daemon.add(Ticket("daemon-ends"))
    other = relay.attach(second)
    relay.daemon.send(messages.End("daemon-ends", first.id, "detached", "as you asked"))
    line = control.until(lambda line: line.end)
    assert (line.end, line.text) == ("detached", "as you asked")
    assert is_cut(data) and is_cut(control.socket)
    assert relay.daemon.ended(first).ending == "detached"
    other.until(lambda line: line.beat)
    assert not supervisor.closed.is_set()  # another one uses the server
    relay.daemon.send(messages.End("daemon-ends", "", "released"))
    assert relay.daemon.ended(second).ending == "released"
    assert supervisor.closed.wait(SLOW)


def test_server_ends(relay: RelayProcess, echo: Echo) -> None:
    ticket, supervisor, control, data = attached(relay, echo, "server-ends")
    supervisor.end()
    assert control.until(lambda line: line.end).end == "server"
    assert relay.daemon.ended(ticket).ending == "server"
    assert is_cut(data)
    # The grant has no server any more, until the daemon gives another.
    assert relay.daemon.add(Ticket("server-ends")).id in relay.daemon.states
    assert list(relay.daemon.states.values())[-1].ending == "server"
    attached(relay, echo, "server-ends")[1].end()


def test_server_refuses_one_connection(relay: RelayProcess, echo: Echo) -> None:
    ticket, supervisor, control, data = attached(relay, echo, "refuses")
    supervisor.server = None
    assert relay.show(ticket.preamble(Purpose.DATA)) is None
    data.sendall(b"again")
    assert data.recv(5) == b"again"
    control.close()


def test_notice_and_what_the_check_found(relay: RelayProcess, echo: Echo) -> None:
    ticket, _, control, _ = attached(relay, echo, "notice")
    relay.daemon.send(messages.Notice("notice", "the node is drained in 5 min"))
    assert control.until(lambda line: line.notice).notice == "the node is drained in 5 min"
    control.send(lines.FromClient(checked=LinkReport(checked="fair", rtt_us=80.5, up_bps=9e9, down_bps=8e9)))
    assert relay.daemon.until(ticket, lambda state: state.checked).checked == "fair"
    relay.daemon.send(messages.Notice("notice", '"\n' * 3000))  # a line is a line, however long the text
    assert control.until(lambda line: line.notice).notice.startswith('"\n"\n')
    control.until(lambda line: line.beat)
    control.close()


def test_a_client_that_checks_without_end_does_not_keep_the_daemon_busy(relay: RelayProcess, echo: Echo) -> None:
    ticket, _, control, _ = attached(relay, echo, "checks")
    some = (LinkReport(checked=found, rtt_us=80, up_bps=9e9, down_bps=8e9) for found in ("good", "fair") * 250)
    last = LinkReport(checked="poor", rtt_us=80, up_bps=9e9, down_bps=8e9)
    control.send(b"".join(lines.encode(lines.FromClient(checked=report)) for report in (*some, last)))
    told = 0
    while ticket.id not in relay.daemon.states or relay.daemon.states[ticket.id].checked != "poor":
        message = relay.daemon.read()
        told += isinstance(message, messages.Is) and message.id == ticket.id
    assert told < 100
    control.close()


def test_round_trip_time_is_the_networks(relay: RelayProcess, echo: Echo) -> None:
    with SlowLink(relay.address, delay=0.005) as link:
        ticket = relay.daemon.add(Ticket("rtt"), Supervisor(echo.address))
        with relay.through(link.address):
            control = relay.attach(ticket)
        for number in range(3):
            control.send(lines.FromClient(beat=number))
            control.until(lambda line: line.beat)
        # To the link's near end, which acknowledges at once.
        assert 0 < relay.daemon.until(ticket, lambda state: state.rtt_us).rtt_us < 40_000
        control.close()


def test_silence(directory: Path, echo: Echo) -> None:
    with RelayProcess(directory, silent=1.5) as relay, SlowLink(relay.address) as link:
        ticket = relay.daemon.add(Ticket("silence"), supervisor := Supervisor(echo.address))
        relay.address = link.address
        control = relay.attach(ticket)
        data = relay.use(ticket, Purpose.DATA)
        link.cut()
        state = relay.daemon.ended(ticket)
        assert state.ending == "lost" and 1.5 <= state.silent_s < SLOW
        assert supervisor.closed.wait(SLOW)
        link.mend()
        assert is_cut(data) and is_cut(control.socket)


def test_cut_and_back(relay: RelayProcess, echo: Echo) -> None:
    with SlowLink(relay.address) as link:
        with relay.through(link.address):
            ticket, _, control, data = attached(relay, echo, "cut")
        link.cut()
        sent = os.urandom(1 << 20)
        sender = threading.Thread(target=data.sendall, args=(sent,))
        sender.start()
        link.mend()
        came = b""
        while len(came) < len(sent):
            came += data.recv(1 << 18)
        sender.join()
        assert came == sent
        control.until(lambda line: line.beat)
        control.close()
        assert relay.daemon.ended(ticket).ending == "detached"


def test_when_an_attachment_is_late() -> None:
    """In virtual time: 5 s of silence are forgiven, 10 s are not; a ticket is good for 60 s."""
    book, ticket = Book(Times()), Ticket("g")
    attachment = book.add(ticket.add(), now=100.0)
    assert attachment is not None
    assert book.late(159.9) == [] and book.late(160.0) == [(attachment, "expired")]
    assert book.admit(ticket.preamble(Purpose.CONTROL), "tls", 160.0) is None
    assert book.admit(ticket.preamble(Purpose.CONTROL), "tls", 159.0) is attachment
    attachment.heard = 165.0
    assert book.late(170.0) == [] and book.deadline() == 175.0
    assert book.late(174.9) == [] and book.late(175.0) == [(attachment, "lost")]
    assert book.admit(ticket.preamble(Purpose.DATA), "tls", 175.0) is None
    book.end(attachment, "lost", 176.0, 1)
    assert attachment.silent_s == 11.0 and book.deadline() is None


# Daemons.


def test_daemon_is_killed_and_the_next_is_told(directory: Path, echo: Echo) -> None:
    with RelayProcess(directory) as relay:
        ticket, _, control, data = attached(relay, echo, "restart")
        gone = relay.daemon.add(Ticket("restart"))
        relay.daemon.close()
        data.sendall(b"again")  # nobody notices
        assert data.recv(5) == b"again"
        relay.attach(gone).send(lines.FromClient(bye=True))
        until(lambda: relay.show(gone.preamble(Purpose.DATA)) is None)
        relay.daemon = FakeDaemon(relay.path)
        told = {state.id: state for state in relay.daemon.at_first}
        assert set(told) == {ticket.id, gone.id}
        assert (told[ticket.id].ending, told[ticket.id].bytes_in, told[gone.id].ending) == ("", 10, "detached")
        relay.daemon.send(messages.Noted(gone.id))
        relay.daemon.send(messages.Noted(ticket.id))  # it lives: not forgotten
        relay.daemon.send(messages.Notice("restart", "read so far"))
        control.until(lambda line: line.notice)
        newer = FakeDaemon(relay.path)
        assert [state.id for state in newer.at_first] == [ticket.id]
        with pytest.raises(ConnectionError):  # the newest is the only one
            while True:
                relay.daemon.read()
        relay.daemon.close()
        relay.daemon = newer
        newer.send(messages.End("restart", "", "released"))
        assert newer.ended(ticket).ending == "released"
        control.close()


def test_stop(directory: Path, echo: Echo) -> None:
    with RelayProcess(directory) as relay:
        ticket, supervisor, control, data = attached(relay, echo, "stop")
        relay.daemon.send(messages.Stop())
        assert relay.daemon.ended(ticket).ending == "relay"
        assert control.until(lambda line: line.end).end == "relay"
        control.close()
        assert relay.process.wait(SLOW) == 0
        assert supervisor.closed.wait(SLOW) and is_cut(data)


def test_killed(directory: Path, echo: Echo) -> None:
    with RelayProcess(directory) as relay:
        _, supervisor, control, data = attached(relay, echo, "killed")
        relay.process.kill()
        assert supervisor.closed.wait(SLOW) and is_cut(data) and is_cut(control.socket)


def test_ends_when_nobody_needs_it(directory: Path) -> None:
    with RelayProcess(directory, idle=0.2) as relay:
        relay.daemon.close()
        assert relay.process.wait(SLOW) == 0


def test_stays_while_it_is_used(directory: Path, echo: Echo) -> None:
    with RelayProcess(directory, idle=0.1) as relay:
        _, _, control, _ = attached(relay, echo, "used")
        relay.daemon.close()
        for _ in range(10):  # beats of 0.05 s
            control.until(lambda line: line.beat)
        assert relay.process.poll() is None


def test_a_relay_of_another_user(echo: Echo) -> None:
    """Of a daemon that is not root's: the relay stays its user, and takes nobody's orders but root's and its own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory, contextlib.ExitStack() as stack:
        Path(directory).chmod(0o777)
        relay = stack.enter_context(RelayProcess(Path(directory), prefix=ordinary.prefix(12345)))
        status = Path(f"/proc/{relay.process.pid}/status").read_text()
        assert "Uid:\t12345\t12345\t12345\t12345" in status and "NoNewPrivs:\t1" in status
        attached(relay, echo, "own")[2].close()
        assert refused_as(12346, relay.path)
        assert not refused_as(12345, relay.path)


def test_nobody_but_root_is_a_daemon(relay: RelayProcess) -> None:
    os.chmod(relay.path, 0o666)  # not even where the file lets it
    assert refused_as(65534, relay.path)
    status = Path(f"/proc/{relay.process.pid}/status").read_text()
    assert "Uid:\t65534\t65534\t65534\t65534" in status
    assert "CapPrm:\t0000000000000000" in status and "CapBnd:\t0000000000000000" in status


def refused_as(uid: int, path: str) -> bool:
    """Whether a process of this user is told nothing."""
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.settimeout(SLOW)
                sock.connect(path)
                os._exit(2 if sock.recv(100) else 0)
        except OSError:
            os._exit(0)
        finally:
            os._exit(3)
    return {0: True, 2: False}[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


def test_says_what_is_wrong(directory: Path, relay: RelayProcess) -> None:
    listen = f"127.0.0.1:{relay.address[1]}"
    command = helper.command("relay", str(directory / "other.sock"), listen)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/")
    assert done.returncode == 1 and done.stdout == f"nothing can listen at {listen}: Address already in use\n"
    assert not (directory / "other.sock").exists()
