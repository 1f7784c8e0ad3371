"""The daemon's log at each level."""

import contextlib

import pytest

from gpushare.errors import GpushareError


def lines(daemon, what: str) -> list[dict[str, str]]:
    """Debug lines `what key=value ...`; quoted values with spaces are ignored."""
    found = [line.removeprefix("gpushare: ").split() for line in daemon.log.read_text().splitlines()]
    return [dict(word.partition("=")[::2] for word in words[1:]) for words in found if words[:1] == [what]]


def test_decisions_are_lines_of_the_debug_log(make_daemon):
    daemon = make_daemon("--simulate", "1x16GiB", "--log-level", "debug").start()
    child, grant = daemon.join(memory="1GiB", time="25%")
    [admitted] = lines(daemon, "admit")
    assert (admitted["grant"], admitted["memory_bytes"], admitted["guaranteed_milli"]) == (grant, str(1 << 30), "250")
    phases = [(line["event"], line["to"]) for line in lines(daemon, "phase")]
    assert phases == [("bound", "bound"), ("started", "active")]
    shared = lines(daemon, "share")[-1]
    assert (shared["grant"], shared["guarantee_milli"]) == (grant, "1000"), "alone, it is served all of its tenant's"
    [joined] = lines(daemon, "join")
    assert (joined["grant"], joined["answer"]) == (grant, "0")
    with contextlib.suppress(GpushareError):
        daemon.client.create(memory="1GiB", time=2000)
    assert lines(daemon, "refuse")[-1]["code"] == "usage"
    daemon.kill()
    daemon.start()
    [adopted] = lines(daemon, "adopt")
    assert (adopted["grant"], adopted["phase"], adopted["processes"]) == (grant, "active", "1")
    child.kill()


@pytest.mark.parametrize("level", ["info", "warning"])
def test_other_levels_have_no_decisions(make_daemon, tmp_path, level):
    config = tmp_path / "gpushare.toml"
    config.write_text(f'log_level = "{level}"\n')
    daemon = make_daemon("--simulate", "1x16GiB", "--config", str(config)).start()
    daemon.client.create(memory="1GiB", time=250)
    daemon.kill()
    daemon.start()
    text = daemon.log.read_text()
    assert ("nothing was recorded" in text) == (level == "info")
    assert "grant=" not in text


def test_a_line_stays_a_line_whatever_a_request_carries(make_daemon):
    daemon = make_daemon("--simulate", "1x16GiB", "--log-level", "debug").start()
    with pytest.raises(GpushareError):
        daemon.client.call("POST", "/v1/grants", {"memory": 1, "time": 1, "a\ngpushare: forged": 1})
    assert "forged" in daemon.log.read_text()
    assert not any(line.startswith("gpushare: forged") for line in daemon.log.read_text().splitlines())


def test_an_unknown_level_is_refused(make_daemon, tmp_path):
    daemon = make_daemon("--simulate", "1x16GiB")
    done = daemon.cli("daemon", "--log-level", "loud")
    assert done.returncode == 2
    assert "loud" in done.stderr
    config = tmp_path / "gpushare.toml"
    config.write_text('log_level = "loud"\n')
    done = daemon.cli("daemon", "--config", str(config))
    assert done.returncode == 2
    assert "log_level" in done.stderr
