"""Messages that a process can send to a grant's socket. Run as a program: commands and answers as JSON lines."""

import contextlib
import json
import os
import resource
import socket
import sys
from pathlib import Path
from typing import Any

PATIENCE_S = 10.0


def connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)  # blocks while the queue is full
    connection.settimeout(PATIENCE_S)
    return connection


def exchange(path: str, messages: list[bytes], descriptors: int, waits: bool) -> tuple[bytes, int] | None:
    """Sends messages, each with a number of descriptors. Returns the answer and the number of descriptors received,
    None if the connection was closed or the answer not awaited."""
    with connected(path) as connection, open(os.devnull) as attached:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for message in messages:
                try:
                    socket.send_fds(connection, [message], [attached.fileno()] * descriptors)
                except PermissionError:  # the kernel refuses descriptors for the daemon's socket (Linux 6.16)
                    connection.send(message)
            if not messages:
                connection.shutdown(socket.SHUT_WR)
        if not waits:
            return None
        try:
            answer, came, *_ = socket.recv_fds(connection, 4096, 8)
        except ConnectionResetError:  # the daemon did not read later messages; its answer was delivered
            answer, came, *_ = socket.recv_fds(connection, 4096, 8)
        for descriptor in came:
            os.close(descriptor)
        return (answer, len(came)) if answer else None


class Flood:
    def __init__(self, path: str) -> None:
        self.path = path
        self.held: list[socket.socket] = []

    def fill(self, count: int) -> int:
        """Opens connections that send nothing."""
        self.held = [connected(self.path) for _ in range(count)]
        return len(self.held)

    def talk(self, request: bytes, count: int) -> int:
        """Repeats a request until the connection is closed, at most `count` times; returns how many were sent."""
        connection = connected(self.path)
        self.held.append(connection)
        for sent in range(count):
            try:
                connection.send(request)
            except BrokenPipeError:
                return sent
        return count

    def end(self) -> int:
        for connection in self.held:
            connection.close()
        self.held.clear()
        return 0


def obey(command: dict[str, Any], flood: Flood) -> Any:
    if "fill" in command:
        return flood.fill(command["fill"])
    if "talk" in command:
        return flood.talk(bytes.fromhex(command["request"]), command["talk"])
    if "end" in command:
        return flood.end()
    messages = [bytes.fromhex(message) for message in command["messages"]]
    answer = exchange(flood.path, messages, command["descriptors"], command["waits"])
    return answer and [answer[0].hex(), answer[1]]


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flood = Flood(str(Path(sys.argv[1])))
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line), flood)), flush=True)


if __name__ == "__main__":
    main()
