"""Runs code as user nobody, in a child that drops root for good."""

import os

NOBODY = 65534


def as_nobody(work):
    """Runs `work` as nobody; returns the exception it raised as class name and text, or 'ok'."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "ok"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read) as answer:
        return answer.read()


def open_to(daemon, gid):
    """Gives the daemon's socket to group `gid`, whose members may connect."""
    os.chown(daemon.layout.socket, 0, gid)
    daemon.layout.socket.chmod(0o660)
