"""A program in place of ssh, whose other machine is this one: it forwards sockets, and runs commands in a session that
ends with it, as sshd does when a connection ends."""

import os
from pathlib import Path

OFF = "nobody@off"
"""A host that refuses."""

_PROGRAM = """\
#!/usr/bin/python3
import os, signal, socket, subprocess, sys, threading
words = sys.argv[1:]
option = lambda name: words[words.index(name) + 1] if name in words else ""
host = words[words.index("--") + 1]
if host == "OFF":
    print("ssh: connect to host off port 22: Connection refused", file=open(option("-E") or "/dev/stderr", "a"))
    sys.exit(255)
if "-G" in words:
    sys.exit(print("user me\\nhostname 127.0.0.1\\nport 22"))
if "-L" not in words:
    session = subprocess.Popen(["/bin/sh", "-c", words[-1]], cwd="/")
    ended = lambda *_: os._exit(255)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)
    status = session.wait()
    os._exit(status if status >= 0 else 255)
local, remote = option("-L").split(":")
listener = socket.socket(socket.AF_UNIX)
listener.bind(local)
listener.listen()
if any(word.startswith("LocalCommand=") for word in words):
    subprocess.run(["/bin/sh", "-c", next(word for word in words if word.startswith("LocalCommand="))[13:]])
def copy(a, b):
    try:
        while part := a.recv(65536):
            b.sendall(part)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def serve(here):
    there = socket.socket(socket.AF_UNIX)
    try:
        there.connect(remote)
    except OSError:
        here.close()
        return
    threading.Thread(target=copy, args=(there, here), daemon=True).start()
    copy(here, there)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def path(directory: Path) -> str:
    """Writes the program; returns a PATH on which it is found."""
    program = directory / "ssh"
    program.write_text(_PROGRAM.replace("OFF", OFF))
    program.chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"
