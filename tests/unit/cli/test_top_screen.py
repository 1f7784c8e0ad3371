"""`top` on Textual's test screen, with answers that no daemon would give."""

import asyncio
import re

import pytest
from rich.style import Style
from views.tops import Answering, device, grant, screen, tenant

from gpushare.tui import sheet, styles
from gpushare.tui.app import Top
from gpushare.tui.queries import Looker

EVIL = "\x1b[2J\x9b31m[bold red]x[/] \N{RIGHT-TO-LEFT OVERRIDE}\x07" + "w" * 200
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


def shown(client, size, *keys, steps=None):
    """The screen's lines after these keys. `steps`: a coroutine to run instead, with the app and the pilot."""

    async def run():
        app = Top(client, Looker(client).look(), 3600)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            if steps is not None:
                return await steps(app, pilot)
            await pilot.press(*keys)
            await pilot.pause()
            return screen(app)

    return asyncio.run(run())


def hostile():
    decision = {"at_ns": 1, "what": "admitted", "text": EVIL}
    client = Answering(
        grants=[grant(EVIL, tenant=EVIL, phase=EVIL, notice=EVIL, gang={"id": EVIL})],
        devices=[
            device(0, name=EVIL),
            device(1, health="unhealthy", health_reason=EVIL),
            device(2, state="drained", drain_reason=EVIL),
        ],
        tenants=[tenant(EVIL)],
    )
    client.story = {"phase": EVIL, "now": [EVIL], "decisions": [decision]}
    return client


PLACES = {  # where a name shows, by the keys that lead there and the ones that lead back
    "grants and devices": ((), ()),
    "receipts": (("enter",), ("escape",)),
    "tenants": (("t",), ("g",)),
    "the question": (("x",), ("escape",)),
    "the fields": (("r",), ("escape",)),
    "the words": (("slash", "w"), ("enter",)),
}


def test_nothing_that_others_named_is_obeyed():
    async def steps(app, pilot):
        found = {}
        for place, (there, back) in PLACES.items():
            await pilot.press(*there)
            await pilot.pause()
            found[place] = screen(app)
            await pilot.press(*back)
        return found

    for place, lines in shown(hostile(), (140, 40), steps=steps).items():
        text = "\n".join(lines)
        assert not CONTROL.search(text.replace("\n", "")), place
        assert "\\x1b[2J" in text, place
        if place in ("receipts", "the question", "the fields"):
            assert "[bold red]x[/]" in text, place


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 1), (20, 5), (400, 100)])
def test_every_size_has_a_picture(size):
    lines = shown(Answering(grants=[grant("g-1")], tenants=[tenant("default")]), size, "enter", "t", "slash")
    assert len(lines) == size[1]


@pytest.mark.slow
def test_a_node_without_grants():
    text = "\n".join(shown(Answering(devices=[], tenants=[]), (80, 24), "x", "r", "enter", "s", "i", "t", "enter"))
    assert "0 devices, 0 grants" in text


def test_the_cursor_stays_with_its_grant():
    client = Answering(grants=[grant(f"g-{name}", created_ns=name, used_milli=name) for name in range(1, 40)])

    async def steps(app, pilot):
        assert (app.grants.sorted_by, app.grants.down, app.grants.rows[0].id) == ("GOT", True, "g-39")
        await pilot.press("i")
        assert app.grants.current.id == "g-1"  # the top line stays the cursor's
        await pilot.press("down", "down", "i")
        assert app.grants.current.id == "g-3"
        await pilot.pause()
        assert any(line.startswith("g-3 ") for line in screen(app))
        await pilot.press("i", "home", "pagedown", "end", "up")
        assert app.grants.current.id == "g-38"
        await pilot.press("slash", *"g-7", "enter")
        return app.grants.current.id, len(app.grants.rows), app.grants.body.has_focus

    assert shown(client, (80, 24), steps=steps) == ("g-7", 1, True)


@pytest.mark.slow
def test_a_click_on_a_title_sorts_and_one_on_a_row_goes_there():
    client = Answering(grants=[grant(f"g-{name}", created_ns=name, waited_milli=name) for name in range(5)])

    async def steps(app, pilot):
        head = next(line for line in screen(app) if line.startswith("GRANT"))
        await pilot.click("#grants-head", offset=(head.index("WAITED"), 0))
        assert (app.grants.sorted_by, app.grants.rows[0].id) == ("WAITED", "g-4")
        await pilot.click("#grants-head", offset=(head.index("WAITED"), 0))
        assert app.grants.rows[0].id == "g-0"
        await pilot.click("#grants-head", offset=(head.index("HISTORY"), 0))
        await pilot.click("#grants Sheet", offset=(3, 2))
        return app.grants.sorted_by, app.grants.current.id

    assert shown(client, (80, 24), steps=steps) == ("WAITED", "g-2")


def test_a_key_is_about_the_grant_that_is_looked_at():
    client = Answering(grants=[grant(f"g-{name}", created_ns=name) for name in range(3)], tenants=[tenant("default")])

    async def steps(app, pilot):
        meant = []

        async def asked(*keys):
            await pilot.press(*keys, "x")
            meant.append(app.screen._row.id if len(app.screen_stack) > 1 else None)
            if meant[-1] is not None:
                await pilot.press("escape")

        await asked("down")
        await asked("enter")
        del client.rows["grants"][1]  # the grant ends while its receipts are read
        app._picture = app._model.look(Looker(client).look())
        app._show()
        await asked()
        await asked("escape")
        await asked("t")
        return meant

    assert shown(client, (80, 24), steps=steps) == ["g-1", "g-1", None, "g-2", None]


def test_a_tenants_grants_and_back():
    client = Answering(
        grants=[grant("g-1", tenant="ml/a"), grant("g-2", tenant="web")],
        tenants=[tenant("ml"), tenant("ml/a", "ml"), tenant("web")],
    )

    async def steps(app, pilot):
        await pilot.press("t", "down", "enter")
        assert [row.id for row in app.grants.rows] == ["g-1"]
        await pilot.pause()
        assert any("1 with /ml/a" in line for line in screen(app))
        await pilot.press("escape")
        return [row.id for row in app.grants.rows]

    assert shown(client, (80, 24), steps=steps) == ["g-1", "g-2"]


def test_what_did_not_change_is_not_drawn_again(monkeypatch):
    client = Answering(grants=[grant(f"g-{name}", created_ns=name) for name in range(8)])

    async def steps(app, pilot):
        drawn = []
        real = sheet._strip
        monkeypatch.setattr(sheet, "_strip", lambda line, *more: drawn.append(line[0][0][:3]) or real(line, *more))
        for _ in range(200):  # until the histories are full of the same
            app._picture = app._model.look(Looker(client).look())
        app._show()
        await pilot.pause()
        drawn.clear()
        client.rows["grants"][3]["devices"][0]["waited_milli"] = 70
        app._picture = app._model.look(Looker(client).look())
        app._show()
        await pilot.pause()
        return [name for name in drawn if name.startswith("g-")]

    assert shown(client, (80, 24), steps=steps) == ["g-3"]


def test_looks_are_apart_without_colours():
    assert {name for name, look in styles.STYLES.items() if look.color} == {
        *("guaranteed", "borrowed", "switching", "history", "memory", "warning")
    }
    assert styles.STYLES["warning"].without_color != Style()
