"""A daemon that makes room before it grants: it answers requests with `making_room` as often as a test says, and then
as it would have. What was asked is kept: a test sees at what pace, and as whom, a client repeats its request."""

import contextlib
import fcntl
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

PATCH = """
def make_room():
    import fcntl, json, time
    from gpushare.daemon.grants.grants import Grants, numbered
    from gpushare.errors import MakingRoomError
    choose = Grants.choose
    def refusal(request, asker):
        with open(FILE, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            told = json.load(file)
            refused = told["left"] > 0
            told["left"] -= refused
            told["asked"].append({"at": time.monotonic(), "asker": asker, "key": request.key})
            file.seek(0)
            file.truncate()
            json.dump(told, file)
        time.sleep(told["takes"])
        again = f"room is made for it: ask again in about {told['estimate']} s"
        return MakingRoomError(again, told["estimate"]) if refused else None
    def after_room_was_made(self, peer, together, members, asker):
        refused = refusal(together[0].request, asker)
        if refused is not None:
            with numbered(0, several=len(together) > 1):
                raise refused
        return choose(self, peer, together, members, asker)
    Grants.choose = after_room_was_made
make_room()
"""


class Room:
    """`directory`: of the test's own, which the daemon can read and write."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "room.json"
        self._file.touch()
        self.is_there()
        self.patch = f"FILE = {str(self._file)!r}\n{PATCH}"
        """What the daemon has to run (Daemon.patch)."""

    def is_made_after(self, times: int, estimate: float | None = 0.02, takes: float = 0.0) -> None:
        """The next requests are refused so many times, all together. `takes`: seconds of the daemon's for each answer,
        as where it is busy."""
        with self._open() as file:
            file.truncate()
            json.dump({"left": times, "estimate": estimate, "takes": takes, "asked": []}, file)

    def is_there(self) -> None:
        """Requests are answered as usual from now on."""
        self.is_made_after(0)

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[str]]:
        """The file, which the daemon does not touch meanwhile."""
        with open(self._file, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The requests since `is_made_after`: when (monotonic seconds), who asked, and the key."""
        with self._open() as file:
            found: list[dict[str, Any]] = json.load(file)["asked"]
        return found

    @property
    def pauses(self) -> list[float]:
        """The seconds between one request and the next."""
        times = [one["at"] for one in self.asked]
        return [after - before for before, after in itertools.pairwise(times)]
