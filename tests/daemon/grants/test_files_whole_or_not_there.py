"""A grant's files are there whole or not at all, wherever a daemon is killed that makes them, and whatever is in their
place."""

import shutil

import pytest

from gpushare.errors import FailedError, GpushareError
from gpushare.inject import grantdir

# Kills the daemon after it has carried out this many changes to the files of grants.
KILLED = """
import os, re, signal
from gpushare.inject import files, mounts
done = []
def counted(change):
    def carried_out(path, *given, **more):
        change(path, *given, **more)
        if re.search("g-[0-9a-f]{{12}}", str(path)):
            done.append(path)
            if len(done) == {count}:
                os.kill(os.getpid(), signal.SIGKILL)
    return carried_out
for module, name in ((files, "directory"), (files, "make"), (files, "replace"), (mounts, "tmpfs")):
    setattr(module, name, counted(getattr(module, name)))
"""
MOST = 20
"""More changes than a grant takes."""


def files(daemon, grant):
    return grantdir.self_dir(daemon.layout, grant).is_dir(), f"gpushare.dev-gpu_{grant}.json" in daemon.specs()


def test_one_whose_daemon_is_killed_at_any_step_is_whole_or_not_there(make_daemon):
    daemon = make_daemon()
    own, left = list(daemon.statements), []
    for count in range(1, MOST):
        daemon.statements = list(own)
        daemon.patch(KILLED.format(count=count)).start()
        try:
            daemon.client.create(memory="1GiB", time="10%")
        except GpushareError:
            daemon.process.wait()
        else:
            break
        daemon.statements = list(own)
        daemon.patch().start()
        grants = [one["id"] for one in daemon.client.grants()]
        assert daemon.grant_dirs() == set(grants)
        assert all(files(daemon, grant) == (True, True) for grant in grants)
        assert len(daemon.specs()) == len(grants)
        left.append(len(grants))
        for grant in grants:
            daemon.client.release(grant)
        assert (daemon.client.grants(), daemon.grant_dirs(), daemon.specs()) == ([], set(), [])
        daemon.kill()
    assert 5 < count < MOST
    assert left == sorted(left), "from some step on it is there"
    assert set(left) == {0, 1}


def test_one_whose_files_were_not_finished_ends_with_the_next_daemon(make_daemon):
    daemon = make_daemon().start()
    grant, other = (daemon.client.create(memory="1GiB", time="10%")["id"] for _ in range(2))
    daemon.kill()
    grantdir.preload_file(daemon.layout, grant).unlink()
    daemon.start()
    assert [one["id"] for one in daemon.client.grants()] == [other]
    assert daemon.client.grant(grant)["phase"] == "failed"
    assert daemon.grant_dirs() == {other}


def test_a_directory_of_specs_that_was_removed_is_made_again(make_daemon):
    daemon = make_daemon().start()
    shutil.rmtree(daemon.layout.cdi)
    grant = daemon.client.create(memory="1GiB", time="10%")["id"]
    assert files(daemon, grant) == (True, True)


def test_where_they_cannot_be_made_the_grant_ends_and_its_owner_is_told(make_daemon):
    daemon = make_daemon().start()
    shutil.rmtree(daemon.layout.cdi)
    daemon.layout.cdi.touch()
    with pytest.raises(FailedError, match="cannot be made"):
        daemon.client.create(memory="1GiB", time="10%")
    assert (daemon.client.grants(), daemon.grant_dirs()) == ([], set())
    assert [grant["phase"] for grant in daemon.client.grants(ended=True)] == ["failed"]
    daemon.layout.cdi.unlink()
    assert daemon.client.create(memory="1GiB", time="10%")["phase"] == "reserved"
