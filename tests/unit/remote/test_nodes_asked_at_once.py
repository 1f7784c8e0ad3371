"""Several nodes are asked at once: one that does not answer takes no time from the others."""

import socket
import threading

from gpushare.remote import overview
from gpushare.remote.nodes import Target

SECONDS = 30.0


def test_one_that_is_silent_keeps_nobody_waiting(tmp_path):
    silent, other = (socket.socket(socket.AF_UNIX) for _ in range(2))
    targets = []
    for name, listener in (("silent", silent), ("other", other)):
        listener.bind(str(tmp_path / name))
        listener.listen()
        targets.append(Target(name, "", tmp_path / name))

    def answer():
        """Closes the first one's connection only once the second is asked."""
        asked, _ = other.accept()
        first, _ = silent.accept()
        asked.close()
        first.close()

    with silent, other:
        threading.Thread(target=answer, daemon=True).start()
        found = overview.ask(targets, SECONDS)
    for one in found:
        assert one.trouble and "timed out" not in one.trouble, one.trouble
