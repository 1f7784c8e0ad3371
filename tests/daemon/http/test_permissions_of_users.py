"""Permissions, tested as another user in a child that drops root for good."""

import grp
import os
import pwd

import pytest
from machine.members import NOBODY, as_nobody, open_to_members

from gpushare.client import Client
from gpushare.errors import ForbiddenError, UnreachableError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def test_outsiders_cannot_connect(public):
    answer = as_nobody(lambda: Client(public.layout.socket).version())
    assert answer.startswith("UnreachableError")
    assert "permission denied" in answer
    assert "run as root" in answer


def test_a_tenant_for_users_and_groups_by_name(public):
    """Names are looked up in another process, so that a hung user database delays nobody else."""
    user, group = pwd.getpwuid(NOBODY).pw_name, grp.getgrgid(NOBODY).gr_name
    public.client.set_tenant("named", {"users": ["root", user]})
    public.client.set_tenant("grouped", {"groups": [group]})
    public.client.set_tenant("others", {"users": ["root"], "groups": ["root"]})
    open_to_members(public.layout.socket)

    def create(tenant):
        mine = Client(public.layout.socket).create(memory="1GiB", time="10%", tenant=tenant)
        Client(public.layout.socket).release(mine["id"])

    for tenant in ("named", "grouped"):
        assert as_nobody(lambda tenant=tenant: create(tenant)) == "ok"
    assert as_nobody(lambda: create("others")).startswith("ForbiddenError")
    for tenant in ("named", "grouped", "others"):
        public.client.remove_tenant(tenant)


@pytest.mark.promise("debug-is-the-owners")
def test_members_of_the_group_act_for_themselves_only(public):
    client = public.client
    client.set_tenant("closed", {"time": "10%"})
    roots = client.create(memory="1GiB", time="10%")
    open_to_members(public.layout.socket)

    def own():
        mine = Client(public.layout.socket).create(memory="1GiB", time="10%")
        assert mine["uid"] == NOBODY
        Client(public.layout.socket).release(mine["id"])

    assert as_nobody(own) == "ok"
    tried = Client(public.layout.socket)
    forbidden = [
        lambda: tried.release(roots["id"]),
        lambda: tried.resize(roots["id"], time="20%"),
        lambda: tried.bind(roots["id"], "process"),
        lambda: tried.debug(roots["id"]),
        lambda: tried.create(memory="1GiB", time="10%", tenant="closed"),
        lambda: tried.set_tenant("mine", {}),
        lambda: tried.remove_tenant("closed"),
        lambda: tried.call("POST", "/v1/oci/edit", {"bundle": "/", "config": {}}),
        lambda: tried.call("POST", f"/v1/hooks/create-runtime?grant={roots['id']}", {"pid": 1}),
        lambda: tried.call("POST", "/v1/oci/place?grant=any", {"state": {"pid": 2, "bundle": "/"}, "config": {}}),
    ]
    for call in forbidden:
        assert as_nobody(call).startswith("ForbiddenError")
    assert client.grant(roots["id"])["phase"] == "reserved"
    assert [tenant["name"] for tenant in client.tenants()] == ["default", "closed"]


def test_same_key_of_another_user_is_another_grant(public):
    open_to_members(public.layout.socket)
    mine = public.client.create(memory="1GiB", time="10%", key="job")
    answer = as_nobody(lambda: Client(public.layout.socket).create(memory="1GiB", time="10%", key="job"))
    assert answer == "ok"
    assert {grant["uid"] for grant in public.client.grants()} == {0, NOBODY}
    assert mine["key"] == "job"


@pytest.mark.promise("own-files-only", "root-command-stays")
def test_nothing_of_a_grant_is_open_to_others(public):
    child, grant_id = public.join()
    bound = public.client.create(memory="1GiB", time="10%")["id"]
    public.client.bind(bound, "container")
    for name in (grant_id, bound):
        for file in ("limits", "usage", "grant.sock"):
            path = public.layout.grants / name / "self" / file
            assert as_nobody(lambda path=path: path.stat()).startswith("PermissionError")
    assert child.poll() is None


def test_socket_of_somebody_else_is_not_talked_to(tmp_path):
    import socket

    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        os.chown(path, NOBODY, NOBODY)
        with pytest.raises(UnreachableError, match="belongs to uid 65534"):
            Client(path).version()


def test_state_directory_open_to_others_is_refused(tmp_path):
    import subprocess
    import sys

    state = tmp_path / "open"
    state.mkdir()
    state.chmod(0o777)
    command = [sys.executable, "-m", "gpushare", "daemon", "--simulate", "1x1GiB", "--state-dir", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=30)
    assert done.returncode == 1
    assert "written by others" in done.stderr


def test_forbidden_maps_to_exit_3():
    assert ForbiddenError.exit_code == 3
