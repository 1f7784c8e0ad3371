import pytest

from gpushare.cli.main import main
from gpushare.daemon.timing import Timing
from gpushare.errors import UsageError


def test_intervals_are_set_by_name_and_others_stay():
    assert Timing.parse("health=0.05,tick=1e-1") == Timing(health=0.05, tick=0.1)


@pytest.mark.parametrize("text", ["", "health", "health=", "health=soon", "health=-1", "health=nan", "heath=1"])
def test_anything_else_is_refused(text, capsys):
    with pytest.raises(UsageError):
        Timing.parse(text)
    assert main(["daemon", "--timing", text]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2
