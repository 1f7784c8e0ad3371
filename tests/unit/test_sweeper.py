import asyncio
import os
from pathlib import Path

import pytest

from gpushare.inject import steps
from gpushare.inject.steps import Steps
from gpushare.inject.sweeper import Sweeper

REMOVAL = Steps(steps.unlink("file"), steps.rmdir(""))


def directory(parent: Path, name: str, *files: str) -> Path:
    made = parent / name
    made.mkdir()
    for file in ("file", *files):
        (made / file).touch()
    return made


def threads() -> set[str]:
    return {Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")}


def test_all_are_removed_when_it_says_so_and_what_fails_is_told(tmp_path):
    told: list[Path] = []

    async def sweep() -> None:
        sweeper = Sweeper(REMOVAL, told.append)
        await sweeper.swept()
        assert "gs-sweeper" not in threads(), "before there is anything to remove"
        for number in range(300):
            sweeper.put(directory(tmp_path, f"d{number}", *(["more"] if number % 100 == 50 else [])))
            if number % 70 == 0:
                await sweeper.swept()
                assert not (tmp_path / f"d{number}").exists()
        assert "gs-sweeper" in threads()
        await asyncio.gather(*(sweeper.swept() for _ in range(3)))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["d150", "d250", "d50"]
        assert [path.name for path in told] == ["d50", "d150", "d250"]
        sweeper.close()
        assert "gs-sweeper" not in threads()

    asyncio.run(sweep())


def test_what_is_left_is_done_before_it_is_closed(tmp_path):
    told: list[Path] = []

    async def sweep() -> None:
        sweeper = Sweeper(REMOVAL, told.append)
        for number in range(200):
            sweeper.put(directory(tmp_path, f"d{number}"))
        sweeper.put(tmp_path / "absent")
        waiting = asyncio.create_task(sweeper.swept())
        await asyncio.sleep(0)
        sweeper.close()
        await waiting
        sweeper.close()

    asyncio.run(sweep())
    assert (list(tmp_path.iterdir()), told) == ([], [tmp_path / "absent"])


def test_a_name_that_no_path_can_have_is_refused(tmp_path):
    async def sweep() -> None:
        sweeper = Sweeper(REMOVAL, pytest.fail)
        with pytest.raises(OSError, match="too long"):
            sweeper.put(Path("/" + "x" * 5000))
        sweeper.close()

    asyncio.run(sweep())


def test_its_thread_takes_no_signals(tmp_path):
    """They are for the thread that runs Python."""

    async def sweep() -> None:
        sweeper = Sweeper(REMOVAL, pytest.fail)
        sweeper.put(directory(tmp_path, "d"))
        await sweeper.swept()
        for task in os.listdir("/proc/self/task"):
            status = Path(f"/proc/self/task/{task}/status").read_text()
            if "gs-sweeper" in status:
                blocked = int(status.split("SigBlk:")[1].split()[0], 16)
                assert blocked & 1 << 14, "SIGTERM"
                break
        else:
            pytest.fail("no such thread")
        sweeper.close()

    asyncio.run(sweep())
