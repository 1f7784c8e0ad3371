"""How often a carrier's program is asked for its version."""

import asyncio

from remote.elsewhere import contract

from gpushare.daemon.remote import carriers
from gpushare.errors import RefusedError


def test_once_where_it_says_one_and_again_where_it_does_not(tmp_path, monkeypatch):
    answers = [RefusedError("a library is not there"), "1.2"]

    def answer(_command, _driver):
        if isinstance(said := answers.pop(0), Exception):
            raise said
        return said

    monkeypatch.setattr(carriers, "_ask_version", answer)
    monkeypatch.setattr(carriers, "_AGAIN_S", 0.0)
    contract(tmp_path / "carriers", "late", ("/bin/true", "{port}"), ("/bin/true",))

    async def play():
        asked = carriers.Carriers(tmp_path / "carriers", {})
        return [one for _ in range(3) for one in await asked.all() if one.name == "late"]

    first, second, third = asyncio.run(play())
    assert (first.version, first.trouble) == ("", "a library is not there")
    assert (second.version, second.trouble) == (third.version, third.trouble) == ("1.2", "")
    assert not answers
