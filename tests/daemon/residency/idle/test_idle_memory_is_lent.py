"""What a grant does not use, another has: memory of grants that do nothing is moved when somebody wants room, and its
owner has it back before all others. The processes play the interposer's part."""

import pytest
from run.waiting import until

from gpushare.errors import MakingRoomError, RefusedError

GIB = 1 << 30
LOAN = {"memory": 10 * GIB, "time": 0, "device": 0, "borrow_memory": True, "idle_memory": "lend"}


@pytest.fixture
def daemon(quick):
    return quick


@pytest.fixture
def client(daemon):
    return daemon.client


def working(one):
    one("forge inflight 1")
    return one


def at_rest(one):
    one("forge inflight 0")
    return one


def asked(client, **request):
    """What the node answers; None: the grant is there."""
    try:
        client.create(**{**LOAN, **request})
    except RefusedError as refusal:
        return refusal
    return None


def idle(client, *grants, **request):
    """Until just these grants would be moved for a request."""
    names = sorted(one.id for one in grants)
    until(
        lambda: sorted(one["grant"] for one in client.plan(**{**LOAN, **request})["moved"]) == names,
        f"{names} would be moved",
    )


def test_what_works_is_not_moved(client, notebook):
    one = working(notebook(gpu="0", memory="12GiB").holds())
    assert type(asked(client)) is RefusedError
    assert one.where == "resident"


def test_a_request_is_granted_once_who_does_nothing_has_moved(client, notebook):
    one = notebook(gpu="0", memory="12GiB").holds()
    idle(client, one)
    refusal = asked(client)
    assert isinstance(refusal, MakingRoomError)
    assert 0 < refusal.estimate_seconds < 10
    assert one.id in str(refusal)
    assert one.where == "suspending"
    one("follow")
    one.comes_to("suspended")
    borrower = client.create(**LOAN)
    assert borrower["devices"][0]["memory_borrowed_bytes"] == 6 * GIB
    assert one.where == "suspended"
    client.release(borrower["id"])
    one("wants")
    one.comes_to("resident")


def test_room_is_made_for_all_of_a_gangs_part_and_kept_for_it(client, notebook):
    """Each of its grants would fit once one of the notebooks had left."""
    part = [{**LOAN, "memory": 6 * GIB}] * 2
    both = [notebook(gpu="0", memory="7GiB").holds() for _ in range(2)]
    idle(client, *both, memory=12 * GIB)
    with pytest.raises(MakingRoomError, match=r"grants\[0\]: .* ask again") as refused:
        client.prepare("part", part)
    assert all(one.id in str(refused.value) for one in both)
    assert [one.where for one in both] == ["suspending"] * 2
    for one in both:
        one("follow")
        one.comes_to("suspended")
    other = {**LOAN, "memory": 6 * GIB}
    with pytest.raises(RefusedError, match="kept for others"):
        client.create(**other)
    assert [grant["phase"] for grant in client.prepare("part", part)["grants"]] == ["prepared"] * 2
    client.abort("part")
    client.release(client.create(**other)["id"])  # else its room would be kept for it


def test_who_has_been_idle_for_longest_goes_first_and_no_more_than_needed(client, notebook):
    first, second, third = (notebook(gpu="0", memory="4GiB") for _ in range(3))
    for one in (first, second, third):
        one.holds(movable=3 * GIB)
        one("follow")
    for one in (first, second, third):
        one("forge launches 1")
        idle(client, first, second, third, memory=14 * GIB)
    idle(client, first, memory=6 * GIB)
    idle(client, first, second, memory=10 * GIB)
    first("forge launches 2")
    idle(client, second, memory=6 * GIB)
    idle(client, first, second, third, memory=14 * GIB)
    idle(client, second, third, memory=10 * GIB)
    client.create(**LOAN | {"memory": 6 * GIB}, wait_seconds=30)
    assert [one.where for one in (first, second, third)] == ["resident", "suspended", "resident"]


@pytest.mark.promise("owner-has-its-memory-back")
def test_an_owner_has_its_room_back_from_idle_grants_first(client, notebook):
    one, other = notebook(gpu="0", memory="6GiB").holds(movable=5 * GIB), notebook(gpu="0", memory="6GiB")
    other.holds(movable=5 * GIB)
    one.suspended()
    borrower = working(notebook(gpu="0", memory="8GiB", time="0", borrow_memory="8GiB").holds(movable=4 * GIB))
    borrower("follow")
    other("follow")
    idle(client, other, memory=7 * GIB)
    one("wants")
    one.comes_to("resident")
    assert other.where == "suspended", "it did nothing"
    assert borrower.shown["residency"]["where"] == "resident"
    assert borrower.shown["eviction"] is None


def test_a_borrower_that_works_is_moved_where_that_is_not_enough(client, notebook):
    one, other = notebook(gpu="0", memory="6GiB").holds(movable=5 * GIB), notebook(gpu="0", memory="6GiB")
    working(other.holds(movable=5 * GIB))
    one.suspended()
    borrower = working(notebook(gpu="0", memory="8GiB", time="0", borrow_memory="8GiB").holds(movable=4 * GIB))
    borrower("follow")
    one("wants")
    one.comes_to("resident")
    assert (other.where, borrower.where) == ("resident", "suspended")
    at_rest(other)("follow")
    borrower("wants")
    borrower.comes_to("resident")
    assert "suspended" in (one.where, other.where)


def test_two_owners_at_once_do_not_wait_for_each_other(client, notebook):
    """What an idle borrower leaves for one is not there for the other: the borrower that works is asked at once."""
    one, other = (notebook(gpu="0", memory="7GiB").holds(movable=6 * GIB).suspended() for _ in range(2))
    loan = {"gpu": "0", "time": "0"}
    rests = notebook(memory="8GiB", borrow_memory="8GiB", **loan).holds(movable=7 * GIB)
    works = working(notebook(memory="5GiB", borrow_memory="5GiB", **loan).holds(movable=4 * GIB))
    works("follow")
    idle(client, rests, memory=8 * GIB)
    one("wants")
    until(lambda: rests.where == "suspending", "it is to leave for one of them")
    other("wants")
    works.comes_to("suspended")
    assert rests.where == "suspending"
    rests("carry")
    one.comes_to("resident")
    other.comes_to("resident")


def test_borrowers_take_turns(client, notebook):
    """Neither ever pauses, and both get on; an owner has its room before either."""
    loan = {"memory": "12GiB", "time": "0", "borrow_memory": "12GiB", "class": "interactive"}
    owner = notebook(gpu="0", memory="12GiB").holds(movable=11 * GIB).suspended()
    for _ in range(3):  # the link is measured
        owner("wants")
        owner.comes_to("resident")
        client.suspend(owner.id, hold=True)
        owner.comes_to("suspended")
        client.resume(owner.id)
        owner.comes_to("resident")
    owner.suspended()
    one = working(notebook(gpu="0", **loan).holds(movable=11 * GIB))
    one("follow")
    request = LOAN | {"memory": 12 * GIB, "class_": "interactive", "keep": True}
    second = client.create(**request, wait_seconds=60)
    other = working(notebook(grant=second["id"]).holds(movable=11 * GIB))
    other("follow")
    for _ in range(2):
        one("wants")
        one.comes_to("resident")
        assert other.where == "suspended"
        other("wants")
        other.comes_to("resident")
        assert one.where == "suspended"
    working(owner)
    owner("wants")
    owner.comes_to("resident")
    assert {one.where, other.where} == {"suspended"}
    one("wants")
    until(lambda: "nobody has memory there that could be moved" in one.shown["residency"]["waits"], "it waits")


def test_one_that_cannot_leave_is_left_alone_for_a_while(client, notebook):
    one = notebook(gpu="0", memory="12GiB").holds()
    idle(client, one)
    assert isinstance(asked(client), MakingRoomError)
    one("refuse 1")
    one.comes_to("resident")
    assert type(asked(client)) is RefusedError
    assert one.where == "resident"


def test_a_plan_says_who_would_be_moved(daemon, client, notebook):
    one = notebook(gpu="0", memory="12GiB").holds()
    words = ("plan", "--memory=10GiB", "--time=0", "--gpu=0", "--borrow-memory", "--idle-memory=lend")
    said = until(lambda: "would fit after" in (out := daemon.cli(*words)).stdout and out, "it counts as idle")
    assert said.returncode == 3
    assert "1 idle grant is moved to host memory (7GiB, about" in said.stdout
    assert one.id in said.stdout
    assert one.where == "resident", "a plan changes nothing"


def test_nobody_takes_what_comes_free_for_another(client, notebook):
    one = notebook(gpu="0", memory="12GiB").holds()
    idle(client, one)
    assert isinstance(asked(client), MakingRoomError)
    assert isinstance(asked(client, memory=8 * GIB), RefusedError)
    one("carry")
    one.comes_to("suspended")
    assert isinstance(asked(client, memory=8 * GIB), RefusedError), "it is another's"
    assert asked(client) is None
    for grant in client.grants():
        client.release(grant["id"])
    until(lambda: asked(client, memory=8 * GIB) is None, "it is its turn")


@pytest.fixture
def three(client, notebook):
    """An owner whose memory is away, and two more that do nothing: the first of them is the first to leave for it."""
    one = notebook(gpu="0", memory="5GiB").holds(movable=4 * GIB)
    for word, where in (("suspend", "suspended"), ("resume", "resident"), ("suspend", "suspended")):
        getattr(client, word)(one.id)  # so the link was seen once
        one("carry")
        one.comes_to(where)
    first, second = (notebook(gpu="0", memory="5GiB").holds(movable=4 * GIB) for _ in range(2))
    second("follow")
    works = working(notebook(gpu="0", memory="5GiB", time="0", borrow_memory="5GiB").holds(movable=GIB))
    works("follow")
    idle(client, first, second, memory=8 * GIB)
    second("forge launches 1")
    idle(client, first, memory=4 * GIB)
    return one, first, second, works


@pytest.mark.promise("owner-has-its-memory-back")
def test_who_says_nothing_is_not_waited_for(three):
    one, silent, other, works = three
    one("follow")
    one("wants")
    one.comes_to("resident")
    assert (silent.where, other.where, works.where) == ("suspending", "suspended", "resident")
    silent("carry")


@pytest.mark.promise("owner-has-its-memory-back")
def test_who_says_that_it_leaves_and_does_not_is_not_waited_for(client, three):
    one, liar, other, _ = three
    one("wants")
    until(lambda: liar.where == "suspending", "it is to leave")
    liar("forge flags 8")
    one.comes_to("resuming")
    one.comes_to("suspending")
    one("follow")
    one.comes_to("resident")
    assert other.where == "suspended", "another leaves instead"
    assert "not all of its processes answered in time" in liar.shown["residency"]["why"]
    liar("carry")


@pytest.mark.promise("owner-has-its-memory-back")
def test_one_that_wakes_all_the_time_pushes_nobody_out(client, notebook):
    """Each time it has its own room back; who had that on loan is moved once."""
    one = notebook(gpu="0", memory="6GiB").holds(movable=5 * GIB)
    other = working(notebook(gpu="0", memory="6GiB").holds(movable=5 * GIB))
    one.suspended()
    borrower = working(notebook(gpu="0", memory="8GiB", time="0", borrow_memory="8GiB").holds(movable=7 * GIB))
    borrower("follow")
    one("wants")
    one.comes_to("resident")
    moved = len(moves(client, borrower))
    for _ in range(300):
        one("wants")
    assert (one.where, other.where, borrower.where) == ("resident", "resident", "suspended")
    assert len(moves(client, borrower)) == moved == 1


def moves(client, one):
    return [row for row in client.call("GET", f"/v1/explain/{one.id}")["decisions"] if row["what"] == "moved"]
