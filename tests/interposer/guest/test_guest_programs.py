"""Real programs of every kind, each run without gpushare and with it: the output and exit status are the same, and the
limit holds according to the simulator.

The interposer is loaded in two ways, as in a container: preloaded, and in place of the driver's library.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from run import built
from run.waiting import until

from gpushare import paths
from gpushare.inject import process

HERE = Path(__file__).resolve().parent
LIMIT = 2 << 30  # of a hand-made grant; the device has 4 GiB
OVER = 3 << 30
PRELOADS = (paths.INTERPOSER, paths.INTERPOSER_ML)
LIBRARIES = Path(f"/usr/lib/{os.uname().machine}-linux-gnu")
Build = Callable[..., Path]


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


@dataclass
class House:
    """The place where programs run: a simulator, a grant, and a directory with the interposer as libcuda.so.1."""

    sim: Simulator
    grant: Grant
    placed: Path

    def bare(self, program: Path | str, *arguments: str, uid: int = 0, **env: str) -> Outcome:
        env = {"LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), "GPUSHARE_SIM_DIR": str(self.sim.directory), **env}
        return self._run([program, *arguments], env, uid)

    def preloaded(self, program: Path | str, *arguments: str, before: str = "", after: str = "", **env: str) -> Outcome:
        preload = ":".join([*filter(None, [before]), *map(str, PRELOADS), *filter(None, [after])])
        own = {"LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), "LD_PRELOAD": preload}
        return self._run([program, *arguments], {**own, "GPUSHARE_GRANT_DIR": str(self.grant.directory), **env}, 0)

    def mounted(self, program: Path | str, *arguments: str, uid: int = 0, **env: str) -> Outcome:
        own = {"LD_LIBRARY_PATH": str(self.placed), "GPUSHARE_GRANT_DIR": str(self.grant.directory)}
        return self._run([program, *arguments], {**own, **env}, uid)

    def _run(self, command: list[Path | str], env: dict[str, str], uid: int) -> Outcome:
        base = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "GPUSHARE_"))}
        run = subprocess.run(
            command, env={**base, **env}, capture_output=True, text=True, timeout=60, user=uid, group=uid
        )
        return Outcome(run.returncode, run.stdout, run.stderr)

    def peak(self) -> int:
        """The peak of device memory held by programs."""
        return int(self.sim.books()["devices"][0]["peak_bytes"])


@pytest.fixture
def house(sim: Simulator, grant: Grant, placed: Path) -> House:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    return House(sim, grant, placed)


@pytest.fixture(scope="session")
def lives() -> Path:
    return built.program("lives")


def same_and_held(house: House, bare: Outcome, *others: Outcome) -> None:
    """Same as without gpushare. With OVER in the environment, each attempt to exceed the limit fails."""
    for other in others:
        assert other == bare, f"without: {bare}\nwith: {other}"
    assert house.peak() < OVER


def over_limit(outcome: Outcome) -> list[list[str]]:
    """The answer to each attempt beyond the limit: [result, result of cuMemGetInfo, total]."""
    lines = [line.split(" over ")[1] for line in outcome.out.splitlines() if " over " in line]
    assert lines, f"nobody asked: {outcome}"
    return [line.replace("info ", "").replace("total ", "").split() for line in lines]


HELD = ["2", "0", str(LIMIT)]  # out of memory; the query succeeds and reports the limit
MODES = [
    "use", "threads", "fork-first", "fork-untouched", "fork-after", "vfork", "exec", "clone", "cycles", "deepbind",
    "atexit",
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["preloaded", "mounted"])
def test_lives(house: House, lives: Path, mode: str, way: str) -> None:
    bare = house.bare(lives, mode)
    assert bare.out, bare
    run = getattr(house, way)
    same_and_held(house, bare, run(lives, mode))
    asked = over_limit(run(lives, mode, OVER=str(OVER)))
    assert all(answer == HELD for answer in asked), asked
    assert house.peak() < OVER


def test_the_judge_sees_what_is_not_held(house: House, lives: Path) -> None:
    """Without the interposer these programs exceed the limit, so the assertion can fail."""
    assert over_limit(house.bare(lives, "use", OVER=str(OVER))) == [["0", "0", str(4 << 30)]]
    assert house.peak() > OVER


def test_a_raw_clone_harms_no_books(house: House, lives: Path) -> None:
    """A child created without atfork handlers, killed or aborted in the interposer: it joined as a separate process,
    and the parent's slot is unchanged."""
    outcome = house.preloaded(lives, "clone")
    assert outcome.out.splitlines()[:6] == ["child ended 0"] * 3 + ["child ended 137", "child ended 134", "free 0"]
    assert house.grant.connections == 6, "the parent and its five children each joined"
    books = house.sim.books()["devices"][0]
    assert books["bytes"] == 0
    mine = house.grant.slot(0)
    assert mine.launches == 20
    assert mine.waiting == mine.inflight == 0


def test_another_linker_namespace(house: House, lives: Path) -> None:
    """A preload does not apply to other linker namespaces; the library in place of the driver does."""
    bare = house.bare(lives, "namespace")
    assert bare == Outcome(0, "namespace" + " 0" * 10 + "\n", "")
    same_and_held(house, bare, house.mounted(lives, "namespace"))
    assert over_limit(house.mounted(lives, "namespace", OVER=str(OVER))) == [HELD]
    assert house.peak() < OVER
    past = house.preloaded(lives, "namespace", OVER=str(OVER), GPUSHARE_SIM_DIR=str(house.sim.directory))
    assert over_limit(past) == [["0", "0", str(4 << 30)]], "held by now: take it out of docs/security/limits.md"


def test_linked_with_the_driver(house: House) -> None:
    """Bound at program start (lazily or immediately) instead of opened."""
    for name in ("linked-lazy", "linked-now"):
        program = built.program(name)
        bare = house.bare(program, "fork-first")
        same_and_held(house, bare, house.preloaded(program, "fork-first"), house.mounted(program, "fork-first"))
        assert over_limit(house.preloaded(program, "use", OVER=str(OVER))) == [HELD]
        assert over_limit(house.mounted(program, "use", OVER=str(OVER))) == [HELD]


def test_two_runtimes_in_one_process(house: House, tmp_path: Path) -> None:
    """As when two wheels bundle their own copies of the CUDA runtime."""
    program = built.program("runtimes")
    copies = [tmp_path / name for name in ("libcudart-one.so", "libcudart-two.so")]
    for copy in copies:
        shutil.copy(paths.SIM_LIB_DIR / "libcudart.so.13", copy)
    arguments = [str(copy) for copy in copies]
    bare = house.bare(program, *arguments)
    assert bare.out == "first 0 0 0 second 0 0 0 apart 1\n"
    same_and_held(house, bare, house.preloaded(program, *arguments), house.mounted(program, *arguments))
    for run in (house.preloaded, house.mounted):
        assert run(program, *arguments, OVER=str(OVER)).out.splitlines()[1] == f"over 2 2 total {LIMIT} {LIMIT}"
    assert house.peak() < OVER


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_second_preloaded_library(house: House, lives: Path, tmp_path: Path, order: str) -> None:
    """It wraps malloc and dlsym, and still sees the program's calls."""
    second = built.program("second_preload.so")
    counts = tmp_path / "counts"
    bare = house.bare(lives, "fork-first", LD_PRELOAD=str(second))
    both = house.preloaded(lives, "fork-first", **{order: str(second)}, SECOND_PRELOAD_COUNTS=str(counts))
    same_and_held(house, bare, both)
    allocations, lookups = map(int, counts.read_text().split())
    assert allocations > 0
    assert lookups >= 12, "the program's own look-ups pass through it"
    assert over_limit(house.preloaded(lives, "use", **{order: str(second)}, OVER=str(OVER))) == [HELD]
    same_and_held(house, bare, house.mounted(lives, "fork-first", LD_PRELOAD=str(second)))


def test_a_second_preloaded_library_that_wraps_the_driver(house: House, tmp_path: Path) -> None:
    """Preloaded in the order of `gpushare run`, which keeps a user's preloads: the wrapper sees the same calls as
    without gpushare, and the limit holds behind it."""
    second = str(built.program("second_wrapper.so"))
    program = built.program("linked-now")
    counts = tmp_path / "counts"
    preloads = process.merge({"LD_PRELOAD": second}, {"LD_PRELOAD": ":".join(map(str, PRELOADS))})
    options = {"SECOND_PRELOAD_COUNTS": str(counts)}
    ways = {
        "preloaded": lambda **more: house.preloaded(program, "use", **{**options, **preloads, **more}),
        "mounted": lambda **more: house.mounted(program, "use", **{**options, "LD_PRELOAD": second, **more}),
    }
    bare = house.bare(program, "use", **options, LD_PRELOAD=second)
    for name, run in ways.items():
        counts.write_text("")
        assert run() == bare, name
        assert counts.read_text() == "1 20 0\n", f"{name}: allocations, launches, calls that found nobody behind it"
        assert over_limit(run(OVER=str(OVER))) == [HELD], name
        assert counts.read_text() == "2 20 0\n", name
    assert house.peak() < OVER


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so"])
def test_a_program_that_preloads_the_driver(house: House, lives: Path, tmp_path: Path, name: str) -> None:
    """Some programs do this to select one of several drivers: the interposer is found before it."""
    driver = tmp_path / name
    driver.symlink_to(paths.SIM_LIB_DIR / "libcuda.so.1")
    ours = ":".join(map(str, PRELOADS))
    merged = process.merge({"LD_PRELOAD": str(driver)}, {"LD_PRELOAD": ours})
    assert over_limit(house.preloaded(lives, "use", **merged, OVER=str(OVER))) == [HELD]
    assert house.peak() < OVER


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("name", ["libjemalloc.so.2", "libmimalloc.so.2"])
def test_other_allocators(house: House, lives: Path, name: str, order: str) -> None:
    allocator = str(LIBRARIES / name)
    assert Path(allocator).exists(), "scripts/setup test installs it"
    for mode in ("threads", "fork-first", "cycles"):
        bare = house.bare(lives, mode, LD_PRELOAD=allocator)
        assert bare.err == ""
        same_and_held(house, bare, house.preloaded(lives, mode, **{order: allocator}))
        same_and_held(house, bare, house.mounted(lives, mode, LD_PRELOAD=allocator))
    assert over_limit(house.preloaded(lives, "use", **{order: allocator}, OVER=str(OVER))) == [HELD]


@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined"])
def test_programs_built_with_sanitizers(house: House, sanitizer: str) -> None:
    """Loaded as is, in place of the driver. AddressSanitizer requires to be first in the list of libraries: a program
    that links it as a shared library needs an option that allows the preload before it, as for any preload."""
    program = built.program(f"with-{sanitizer}")
    # The leaks are the program's and the driver's, as without gpushare. TSan would wait for a second at each exit.
    quiet = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "atexit_sleep_ms=0"}
    for mode in ("threads", "fork-first"):
        bare = house.bare(program, mode, **quiet)
        assert bare.status == 0, bare
        assert bare.err == ""
        same_and_held(house, bare, house.mounted(program, mode, **quiet))
        options = {**quiet, "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}
        same_and_held(house, bare, house.preloaded(program, mode, **options))
    assert over_limit(house.mounted(program, "use", OVER=str(OVER), **quiet)) == [HELD]
    untold = house.preloaded(program, "use", **quiet)
    if sanitizer == "address":
        assert "ASan runtime does not come first" in untold.err
    else:
        assert untold == house.bare(program, "use", **quiet)


def with_run_path(program: Path, directory: Path, copy: Path) -> Path:
    """A copy whose run path is a directory; it replaces the long placeholder from tests/CMakeLists.txt."""
    assert directory.is_dir()
    room = b"/placeholder" * 30
    image = program.read_bytes()
    assert image.count(room) == 1
    copy.write_bytes(image.replace(room, bytes(directory).ljust(len(room), b"\0")))
    return copy


def test_a_setuid_program_of_another_user(house: House, tmp_path: Path) -> None:
    """The loader ignores LD_PRELOAD and LD_LIBRARY_PATH for it. The file in place of the driver still applies. Here the
    program's own run path represents the directory in which a container has the interposer mounted."""
    open_to_all = Path("/tmp") / f"gst-setuid-{os.getpid()}"
    open_to_all.mkdir()
    try:
        open_to_all.chmod(0o755)
        program = with_run_path(built.program("setuid"), house.placed, open_to_all / "setuid")
        bare_program = with_run_path(built.program("setuid"), paths.SIM_LIB_DIR, open_to_all / "setuid-plain")
        for each in (program, bare_program):
            os.chown(each, 0, 0)
            each.chmod(0o4755)
        house.grant.directory.chmod(0o755)
        bare = house.bare(bare_program, "fork-first", uid=65534)
        assert bare.status == 0, bare
        held = house.mounted(program, "fork-first", uid=65534, LD_PRELOAD=str(paths.INTERPOSER))
        same_and_held(house, bare, held)
        assert over_limit(house.mounted(program, "use", uid=65534, OVER=str(OVER))) == [HELD]
        assert house.peak() < OVER
    finally:
        shutil.rmtree(open_to_all)


@pytest.mark.parametrize("kind", ["static-glibc", "musl", "static-musl"])
def test_programs_of_other_worlds(house: House, kind: str) -> None:
    """A static program, or one of another libc, behaves as without gpushare. (None of them can open NVIDIA's driver,
    which is a glibc library.)"""
    program = built.program(f"stranger-{kind}")
    bare = house.bare(program, "a", "b c")
    assert bare == Outcome(3, "2 arguments, b c, 3 allocations, thread 42\n", "")
    assert house.preloaded(program, "a", "b c") == bare
    assert house.mounted(program, "a", "b c") == bare
    assert house.grant.connections == 0


@pytest.mark.parametrize("files", [pytest.param(4, marks=pytest.mark.slow), 5, 6, 7])  # 4: the driver retries for 5 s
def test_too_few_descriptors(house: House, lives: Path, files: int) -> None:
    """The interposer needs two and the driver some: whichever fails, one line gives the reason and the remedy."""
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$0" use']
    outcome = house.preloaded(limited[0], *limited[1:], str(lives))
    assert outcome.status == 1
    [line] = outcome.err.splitlines()
    assert line.startswith("gpushare: ")
    assert f"ulimit -n, RLIMIT_NOFILE), now {files}" in line
    assert house.sim.books()["devices"][0]["bytes"] == 0


def test_enough_descriptors(house: House, lives: Path) -> None:
    """The check itself uses no descriptor of the program: with two more than it needs without gpushare, it runs without
    a message."""
    outcomes = {}
    for files in range(5, 16):
        limited = ["sh", "-c", f'ulimit -n {files}; exec "$0" use', str(lives)]
        outcomes[files] = (house.bare(*limited), house.preloaded(*limited))
    least = min(files for files, (bare, _) in outcomes.items() if bare.status == 0)
    for files in range(least + 2, 16):
        bare, ours = outcomes[files]
        assert ours == bare, files


def test_hosts_only(house: House, lives: Path) -> None:
    bare = house.bare(lives, "none")
    assert bare == Outcome(3, "no CUDA here\n", "")
    assert house.preloaded(lives, "none") == bare
    assert house.grant.connections == 0
    until(lambda: house.sim.books()["devices"][0]["bytes"] == 0, "nothing was ever taken")
