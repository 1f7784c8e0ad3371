"""The accounts of the host pool: against a plain model, and what is refused."""

import random

import pytest

from gpushare.errors import RefusedError
from gpushare.policy.residency.pool import Counts, PoolBook, TenantLimit

MIB, GIB = 1 << 20, 1 << 30
GRANTS = ("g-a", "g-b", "g-c")


class Model:
    """Recomputes everything from lists of what happened."""

    def __init__(self, size):
        self.size, self.reserved, self.had, self.leaving = size, dict.fromkeys(GRANTS, 0), [], []

    def used(self, grant):
        return sum(one.size for one in self.had if one.grant == grant)

    def counts(self):
        used = sum(map(self.used, GRANTS)) + sum(one.size for one in self.leaving)
        waiting = sum(max(0, self.reserved[grant] - self.used(grant)) for grant in GRANTS)
        return Counts(max(0, self.size - used - waiting), waiting, used)


@pytest.mark.parametrize("seed", range(8))
def test_it_counts_as_a_model_does_and_never_reserves_what_there_is_not(seed):
    choose = random.Random(seed)
    book, model = PoolBook(64 * MIB, 1000), Model(64 * MIB)
    refused = 0
    for _ in range(2000):
        grant, size = choose.choice(GRANTS), choose.randrange(0, 40, 2) * MIB
        what = choose.random()
        if what < 0.3:
            more = max(size, model.used(grant)) - max(model.reserved[grant], model.used(grant))
            try:
                book.reserve(grant, size)
            except RefusedError:
                assert more > model.counts().free
                refused += 1
            else:
                assert more <= model.counts().free
                model.reserved[grant] = size
        elif what < 0.6 and size:
            left = model.reserved[grant] - model.used(grant)
            try:
                model.had.append(book.draw(grant, choose.randrange(3), 1, size))
            except RefusedError:
                assert size > left
            else:
                assert size <= left
        elif what < 0.8 and model.had:
            one = model.had.pop(choose.randrange(len(model.had)))
            book.give_back(one)
            book.give_back(one)
            model.leaving.append(one)
        elif what < 0.95 and model.leaving:
            book.emptied(model.leaving.pop(0))
        else:
            book.release(grant)
            model.reserved[grant] = 0
        assert book.counts() == model.counts()
        assert book.segment_count == len(model.had) + len(model.leaving)
    assert refused > 50
    for one in [*model.had, *model.leaving]:
        book.give_back(one)
        book.emptied(one)
    for grant in GRANTS:
        book.release(grant)
    assert book.counts() == Counts(64 * MIB, 0, 0)


def test_a_tenant_and_those_below_it_have_no_more_than_its_limit():
    book = PoolBook(64 * GIB, 1000)
    lab, ada, bob = TenantLimit("lab", 8 * GIB), TenantLimit("lab/ada", 6 * GIB), TenantLimit("lab/bob", None)
    book.reserve("g-a", 5 * GIB, [ada, lab])
    with pytest.raises(RefusedError, match=r"tenant lab/ada has 5GiB of the 6GiB of host memory .* and 2GiB more"):
        book.reserve("g-b", 2 * GIB, [ada, lab])
    book.reserve("g-b", 3 * GIB, [bob, lab])
    with pytest.raises(RefusedError, match="tenant lab has 8GiB of the 8GiB"):
        book.reserve("g-b", 4 * GIB, [bob, lab])
    assert book.reserved("g-b") == 3 * GIB
    book.reserve("g-c", 40 * GIB, [TenantLimit("default", None)])
    book.reserve("g-a", 4 * GIB, [TenantLimit("lab/ada", 1 * GIB), lab])  # less is never refused
    book.reserve("g-b", 4 * GIB, [bob, lab])


def test_what_was_there_before_a_restart_counts_for_its_tenant():
    book, limit = PoolBook(64 * GIB, 1000), TenantLimit("lab", 8 * GIB)
    book.adopt("g-a", 0, 1, 6 * GIB, [limit])
    with pytest.raises(RefusedError, match="tenant lab has 6GiB"):
        book.reserve("g-b", 3 * GIB, [limit])
    book.reserve("g-a", 6 * GIB, [limit])
    assert book.counts() == Counts(58 * GIB, 0, 6 * GIB)


def test_no_grant_takes_all_descriptors():
    book = PoolBook(64 * GIB, 40)
    for grant in GRANTS:
        book.reserve(grant, GIB)
        for _ in range(10):
            book.draw(grant, 0, 1, 2 * MIB)
        with pytest.raises(RefusedError, match="too many pieces"):
            book.draw(grant, 0, 1, 2 * MIB)
    book.reserve("g-d", GIB)
    last = [book.draw("g-d", 0, 1, 2 * MIB) for _ in range(10)]
    book.reserve("g-e", GIB)
    with pytest.raises(RefusedError, match="too many pieces"):
        book.draw("g-e", 0, 1, 2 * MIB)
    book.give_back(last[0])
    with pytest.raises(RefusedError, match="too many pieces"):
        book.draw("g-e", 0, 1, 2 * MIB)
    book.emptied(last[0])
    book.draw("g-e", 0, 1, 2 * MIB)


def test_what_is_kept_pinned_is_not_free():
    book = PoolBook(8 * GIB, 40)
    with pytest.raises(RefusedError, match="has 2GiB free of 8GiB, and 3GiB more"):
        book.reserve("g-a", 3 * GIB, kept=6 * GIB)
    book.reserve("g-a", 2 * GIB, kept=6 * GIB)
    book.reserve("g-a", 1 * GIB, kept=9 * GIB)
