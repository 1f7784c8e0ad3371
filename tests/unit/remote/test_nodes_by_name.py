"""Nodes as users name them, and nodes.toml with the line of every mistake."""

from pathlib import Path

import pytest

from gpushare.errors import UsageError
from gpushare.paths import DEFAULT_SOCKET
from gpushare.remote import nodes
from gpushare.remote.nodes import Target, find, table

LIST = """
[nodes.gpu1]

[nodes.gpu2]
target = "ssh:me@gpu2.example:/srv/node.sock"
relay = "10.0.0.2:7433"
labels = { rack = "r1" }

[nodes.gpu3]
target = "ssh:gpu3"
socket = "/srv/other.sock"
relay = "[fe80::1]:7433"

[nodes.here]
target = "unix:/run/mine.sock"
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes the files that are looked at without --nodes: the user's and the site's."""
    files = tmp_path / "user.toml", tmp_path / "site.toml"
    monkeypatch.setattr(nodes, "files", lambda: files)

    def write(user="", site=""):
        for path, text in zip(files, (user, site), strict=True):
            if text:
                path.write_text(text)
        return files

    return write


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("gpu1", Target("gpu1", "gpu1", DEFAULT_SOCKET)),
        ("gpu2", Target("gpu2", "me@gpu2.example", Path("/srv/node.sock"), ("10.0.0.2", 7433), {"rack": "r1"})),
        ("gpu3", Target("gpu3", "gpu3", Path("/srv/other.sock"), ("fe80::1", 7433))),
        ("here", Target("here", "", Path("/run/mine.sock"))),
        ("ssh:gpu2", Target("ssh:gpu2", "gpu2", DEFAULT_SOCKET)),
        ("other.example", Target("other.example", "other.example", DEFAULT_SOCKET)),
        ("me@other", Target("me@other", "me@other", DEFAULT_SOCKET)),
        ("ssh:h:/a/b", Target("ssh:h:/a/b", "h", Path("/a/b"))),
        ("unix:x.sock", Target("unix:x.sock", "", Path("x.sock"))),
    ],
)
def test_a_node_is_a_name_of_the_list_or_a_destination(written, text, target):
    written(LIST)
    assert find(text) == target


@pytest.mark.parametrize("text", ["-oProxyCommand=x", "", "unix:", "ssh:", "ssh:-x", "a b", "ssh:x;y"])
def test_what_ssh_could_take_for_something_else_is_refused(written, text):
    written()
    with pytest.raises(UsageError, match="node '"):
        find(text)


def test_the_users_list_counts_more_than_the_sites(written):
    written('[nodes.a]\ntarget = "ssh:mine"\n', '[nodes.a]\ntarget = "ssh:theirs"\n[nodes.b]\n')
    assert {name: one.host for name, one in table().items()} == {"a": "mine", "b": "b"}


def test_a_list_that_is_given_counts_alone(written, tmp_path):
    written(LIST)
    (other := tmp_path / "other.toml").write_text("[nodes.z]\n")
    assert list(table(other)) == ["z"]
    with pytest.raises(UsageError, match="no such file"):
        table(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[nodes.a]\ntarget = 3\n", 2, "target"),
        ('[nodes.a]\n\ntarget = "gpu1"\n', 3, "target 'gpu1'"),
        ('[nodes.a]\ntarget = "ssh:-x"\n', 2, "no host for ssh"),
        ('[nodes.a]\nrelay = "10.0.0.1"\n', 2, "no HOST:PORT"),
        ('[nodes.a]\nrelay = "h:0"\n', 2, "no HOST:PORT"),
        ('[nodes.a]\nrelay = "fe80::1:7433"\n', 2, "no HOST:PORT"),
        ('[nodes.a]\nsocket = "x.sock"\n', 2, "absolute"),
        ('[nodes.a]\ntarget = "unix:/x"\nsocket = "/y"\n', 3, "only with ssh"),
        ("[nodes.a]\nlabels = { rack = 1 }\n", 2, "labels"),
        ('[nodes.a]\nuser = "me"\n', 2, "user"),
        ("[nodes.any]\n", 1, "no name"),
        ('[nodes."a b"]\n', 1, "no name"),
        ("[nodes]\na = 3\n", 2, "written as [nodes.NAME]"),
        ("nodes = 3\n", 1, "not a table"),
        ("\n[node.a]\n", 2, "unknown 'node'"),
        ("[nodes.a]\n[nodes.a]\n", 2, ""),
    ],
)
def test_a_mistake_in_the_list_is_named_with_its_line(written, text, line, said):
    user, _ = written(text)
    with pytest.raises(UsageError) as raised:
        table()
    assert str(raised.value).startswith(f"{user}:{line}: ")
    assert said in str(raised.value)
