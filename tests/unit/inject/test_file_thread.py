import asyncio
import os
from pathlib import Path

import pytest

from gpushare._native import lib
from gpushare.inject import steps
from gpushare.inject.filethread import FileThread
from gpushare.inject.steps import Steps

REMOVAL = Steps(steps.unlink("file"), steps.rmdir(""))


def directory(parent: Path, name: str, *files: str) -> Path:
    made = parent / name
    made.mkdir()
    for file in ("file", *files):
        (made / file).touch()
    return made


def threads() -> set[str]:
    return {Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")}


class Told:
    """Records what is reported of each list: its number, and the error's text."""

    def __init__(self, thread: FileThread) -> None:
        self._thread = thread
        self.of: list[tuple[int, str]] = []

    def remove(self, path: Path) -> int:
        def over(error: OSError | None) -> None:
            self.of.append((number, error.strerror if error is not None else ""))

        number = self._thread.run(REMOVAL, path, over)
        return number


def test_all_is_done_in_order_when_it_says_so_and_what_fails_is_told(tmp_path):
    async def remove() -> None:
        thread = FileThread()
        told = Told(thread)
        await thread.done(thread.asked)
        assert "gs-files" not in threads(), "before there is anything to do"
        for number in range(1, 301):
            more = ["more"] if number % 100 == 50 else []
            assert told.remove(directory(tmp_path, f"d{number}", *more)) == number == thread.asked
            if number % 70 == 0:
                await thread.done(number)
                assert not (tmp_path / f"d{number}").exists()
            if number % 90 == 0:
                thread.wait(number)
                assert told.of[number - 1 :] == [(number, "")]
        assert "gs-files" in threads()
        await asyncio.gather(*(thread.done(thread.asked) for _ in range(3)))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["d150", "d250", "d50"]
        assert [number for number, _ in told.of] == list(range(1, 301))
        failed = {number: text for number, text in told.of if text}
        assert list(failed) == [50, 150, 250]
        assert all("not empty" in text and f"/d{number}" in text for number, text in failed.items())
        thread.close()
        assert "gs-files" not in threads()

    asyncio.run(remove())


def test_what_is_left_is_done_before_it_is_closed(tmp_path):
    async def remove() -> None:
        thread = FileThread()
        told = Told(thread)
        for number in range(200):
            told.remove(directory(tmp_path, f"d{number}"))
        told.remove(tmp_path / "absent")
        waiting = asyncio.create_task(thread.done(thread.asked))
        await asyncio.sleep(0)
        thread.close()
        await waiting
        thread.close()
        assert [bool(text) for _, text in told.of] == [False] * 200 + [True]

    asyncio.run(remove())
    assert list(tmp_path.iterdir()) == []


def test_who_fails_when_it_is_told_keeps_nobody_from_being_told(tmp_path, caplog):
    def fails(error: OSError | None) -> None:
        raise RuntimeError(f"told {error}")

    async def remove() -> None:
        thread = FileThread()
        told = Told(thread)
        number = thread.run(REMOVAL, directory(tmp_path, "one"), fails)
        await asyncio.gather(thread.done(number), thread.done(told.remove(directory(tmp_path, "two"))))
        assert told.of == [(2, "")]
        thread.close()

    asyncio.run(remove())
    assert "told None" in caplog.text


def test_who_waits_for_another_when_it_is_told_takes_no_failure_from_it(tmp_path):
    async def remove() -> None:
        thread = FileThread()
        told = Told(thread)
        first = thread.run(REMOVAL, tmp_path / "absent", lambda _: thread.wait(2))
        told.remove(tmp_path / "absent too")
        while first_done(thread) < 2:
            await asyncio.sleep(0.001)
        await thread.done(first)
        assert [(number, "absent too" in text) for number, text in told.of] == [(2, True)]
        thread.close()

    asyncio.run(remove())


def first_done(thread: FileThread) -> int:
    """Number of lists done. The loop may not know of all of them yet."""
    return int(lib.gs_file_thread_done(thread._thread))


def test_a_name_that_no_path_can_have_is_refused(tmp_path):
    async def remove() -> None:
        thread = FileThread()
        with pytest.raises(OSError, match="too long"):
            Told(thread).remove(Path("/" + "x" * 5000))
        assert thread.asked == 0
        thread.close()

    asyncio.run(remove())


def test_its_thread_takes_no_signals(tmp_path):
    """Signals are for the thread that runs Python."""

    async def remove() -> None:
        thread = FileThread()
        thread.wait(Told(thread).remove(directory(tmp_path, "d")))
        for task in os.listdir("/proc/self/task"):
            status = Path(f"/proc/self/task/{task}/status").read_text()
            if "gs-files" in status:
                blocked = int(status.split("SigBlk:")[1].split()[0], 16)
                assert blocked & 1 << 14, "SIGTERM"
                break
        else:
            pytest.fail("no such thread")
        thread.close()

    asyncio.run(remove())
