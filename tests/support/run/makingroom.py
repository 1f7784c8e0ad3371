"""A daemon that makes room before it grants: it answers requests with `making_room` as often as a test says, and then
as it would have. What was asked is kept: a test sees at what pace, and as whom, a client repeats its request."""

import itertools
import json
from pathlib import Path
from typing import Any

PATCH = """
def make_room():
    import json, os, time
    from gpushare.daemon.grants.grants import Grants
    from gpushare.errors import MakingRoomError
    choose = Grants.choose
    def after_room_was_made(self, peer, asked, promises=None, *, member=False, asker=""):
        if os.path.exists(FILE):
            with open(FILE) as file:
                told = json.load(file)
            told["asked"].append({"at": time.monotonic(), "asker": asker, "key": asked.request.key})
            refused = told["left"] > 0
            told["left"] -= refused
            with open(FILE + ".new", "w") as file:
                json.dump(told, file)
            os.replace(FILE + ".new", FILE)
            if refused:
                estimate = told["estimate"]
                raise MakingRoomError(f"room is made for it: ask again in about {estimate} s", estimate)
        return choose(self, peer, asked, promises, member=member, asker=asker)
    Grants.choose = after_room_was_made
make_room()
"""


class Room:
    """`directory`: of the test's own, which the daemon can read and write."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "room.json"
        self.patch = f"FILE = {str(self._file)!r}\n{PATCH}"
        """What the daemon has to run (Daemon.patch)."""

    def is_made_after(self, times: int, estimate: float | None = 0.02) -> None:
        """The next requests are refused so many times, all together."""
        self._file.write_text(json.dumps({"left": times, "estimate": estimate, "asked": []}))

    def is_there(self) -> None:
        """Requests are answered as usual."""
        self._file.unlink(missing_ok=True)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The requests since `is_made_after`: when (monotonic seconds), who asked, and the key."""
        found: list[dict[str, Any]] = json.loads(self._file.read_text())["asked"]
        return found

    @property
    def pauses(self) -> list[float]:
        """The seconds between one request and the next."""
        times = [one["at"] for one in self.asked]
        return [after - before for before, after in itertools.pairwise(times)]
