"""Of a product of parameters a run plays some rows, drawn anew each time: `@pytest.mark.drawn(6)`. Only with `--drawn`,
as make starts pytest; any other run plays all."""

import random
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpushare")
    group.addoption("--drawn", action="store_true", help="of rows that are marked so play some, drawn anew each time")
    group.addoption("--draw", type=int, metavar="SEED", help="with --drawn: the rows of that run")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.drawn and config.option.draw is None:
        sent = getattr(config, "workerinput", {})
        config.option.draw = sent["draw"] if "draw" in sent else random.SystemRandom().getrandbits(32)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All processes of pytest-xdist draw the same."""
    node.workerinput["draw"] = node.config.option.draw


def pytest_report_header(config: pytest.Config) -> str | None:
    if not config.option.drawn:
        return None
    return f"rows are drawn: --drawn --draw={config.option.draw} plays the same"


@pytest.hookimpl(trylast=True)  # of those that the other options leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.drawn:
        return
    products: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("drawn"):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for name, rows in products.items():
        marker = rows[0].get_closest_marker("drawn")
        assert marker is not None
        [most] = marker.args
        draw = random.Random(f"{config.option.draw} {name}")
        left_out |= set(rows) - set(draw.sample(rows, min(most, len(rows))))
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
