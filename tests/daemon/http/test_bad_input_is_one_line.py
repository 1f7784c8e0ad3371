"""Invalid input gets a one-line error and changes nothing."""

import http.client
import json
import os
import socket

import pytest

from gpushare.errors import ForbiddenError, GpushareError, NotFoundError, RefusedError, UsageError

GOOD = {"memory": 1 << 30, "time": 100}
BAD_REQUESTS = [
    ({"memory": "12 GiBs"}, UsageError),
    ({"memory": "-3"}, UsageError),
    ({"memory": -3}, UsageError),
    ({"memory": 0}, UsageError),
    ({"memory": "140%"}, UsageError),
    ({"memory": "NaN"}, UsageError),
    ({"memory": ""}, UsageError),
    ({"memory": "0%"}, UsageError),
    ({"memory": "17TiB"}, UsageError),
    ({"memory": 1.5}, UsageError),
    ({"memory": None}, UsageError),
    ({"memory": True}, UsageError),
    ({"memory": [1]}, UsageError),
    ({"memory": 2**70}, UsageError),
    ({"memory": "17GiB"}, RefusedError),
    ({"memory": "1MiB"}, RefusedError),
    ({"time": "140%"}, UsageError),
    ({"time": "-3"}, UsageError),
    ({"time": -3}, UsageError),
    ({"time_limit": 0}, UsageError),
    ({"time_limit": "0%"}, UsageError),
    ({"time": 1001}, UsageError),
    ({"time": "NaN"}, UsageError),
    ({"time": "nan%"}, UsageError),
    ({"time": "1e2"}, UsageError),
    ({"time": "0.33333"}, UsageError),
    ({"time": 0.3}, UsageError),
    ({"time": "30 percent"}, UsageError),
    ({"time": "٣٠%"}, UsageError),
    ({"time": "9" * 60_000 + "%"}, UsageError),
    ({"memory": "9" * 60_000}, UsageError),
    ({"memory": 10**4000}, UsageError),
    ({"time": 1}, RefusedError),
    ({"time": 500, "time_limit": 400}, UsageError),
    ({"devices": 0}, UsageError),
    ({"devices": -1}, UsageError),
    ({"devices": 17}, UsageError),
    ({"devices": 3}, RefusedError),
    ({"devices": 2, "device": 0}, UsageError),
    ({"device": 7}, NotFoundError),
    ({"device": "GPU-nothing"}, NotFoundError),
    ({"device": -1}, NotFoundError),
    ({"device": ""}, NotFoundError),
    ({"tenant": "nobody-knows"}, NotFoundError),
    ({"tenant": ""}, NotFoundError),
    ({"tenant": "../etc"}, NotFoundError),
    ({"tenant": 5}, UsageError),
    ({"class": "urgent"}, UsageError),
    ({"ttl_seconds": 0}, UsageError),
    ({"ttl_seconds": 10**9}, UsageError),
    ({"ttl_seconds": -5}, UsageError),
    ({"key": ""}, UsageError),
    ({"key": "k" * 1000}, UsageError),
    ({"key": 3}, UsageError),
    ({"memroy": 5}, UsageError),
]


@pytest.fixture
def untouched(daemon, client):
    before = client.grants(ended=True)
    yield
    assert client.grants() == []
    assert client.grants(ended=True) == before
    assert daemon.grant_dirs() == set()
    assert daemon.specs() == []
    assert daemon.process.poll() is None


@pytest.mark.promise("numbers-parse-fast")
def test_every_malformed_value(untouched, client):
    for change, expected in BAD_REQUESTS:
        with pytest.raises(expected) as caught:
            client.call("POST", "/v1/grants", {**GOOD, **change})
        assert type(caught.value) is expected, (change, caught.value)
        text = str(caught.value)
        assert "\n" not in text, change
        assert 20 < len(text) < 400, (change, text)


@pytest.mark.parametrize("missing", ["memory", "time"])
def test_missing_field(untouched, client, missing):
    body = {name: value for name, value in GOOD.items() if name != missing}
    with pytest.raises(UsageError, match=missing):
        client.call("POST", "/v1/grants", body)


def raw(daemon, method, target, body, headers=None):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(daemon.layout.socket))
    connection.request(method, target, body, headers or {})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer["error"]


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("POST", "/v1/grants", b"not json", 400),
        ("POST", "/v1/grants", b"", 400),
        ("POST", "/v1/grants", b'{"memory": NaN, "time": 100}', 400),
        ("POST", "/v1/grants", b"[1, 2]", 400),
        ("POST", "/v1/grants", b"\xff\xfe", 400),
        ("POST", "/v1/grants", b"[" * 100_000, 400),
        ("POST", "/v1/hooks/create-runtime", b"{}", 400),
        ("POST", "/v1/hooks/create-runtime?grant=g-nothing", b"{}", 404),
        ("POST", "/v1/oci/place?grant=g-nothing", b'{"state":{"pid":2,"bundle":"/"},"config":{}}', 404),
        ("POST", "/v1/oci/place?grant=any", b'{"state":{"pid":2,"bundle":"/"},"config":{}}', 400),
        ("POST", "/v1/oci/place?grant=any", b'{"state":{"pid":2,"bundle":"x"},"config":{}}', 400),
        ("POST", "/v1/oci/place?grant=any", b'{"state":{"pid":2},"config":{}}', 400),
        ("POST", "/v1/oci/place?grant=any", b'{"state":{"pid":2,"bundle":"/"},"config":[]}', 400),
        ("POST", "/v1/oci/place", b"{}", 400),
        ("POST", "/v1/grants/g-nothing/bind", b'{"kind": "vm"}', 400),
        ("GET", "/v1/grants/..%2F..%2Fetc", b"", 404),
        ("GET", "/v1/watch?since=now", b"", 400),
        ("GET", "/v1/watch?since=-1", b"", 400),
        ("GET", "/v1/nothing", b"", 404),
        ("PATCH", "/v1/node", b"", 405),
        ("POST", "/v1/oci/edit", b'{"bundle":"/x","config":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}", 400),
        ("POST", "/v1/oci/edit", b'{"bundle":"/x","config":{"annotations":["gpushare.dev/memory"]}}', 400),
    ],
)
def test_raw_nonsense(untouched, daemon, method, target, body, status):
    found, error = raw(daemon, method, target, body)
    assert found == status
    assert error["message"]
    assert "\n" not in error["message"]


def test_body_that_is_not_encoded_as_its_header_states(untouched, daemon):
    found, error = raw(daemon, "POST", "/v1/grants", b"{}", {"Content-Encoding": "gzip"})
    assert (found, error["code"]) == (400, "usage")


@pytest.mark.parametrize(
    "request_line",
    [b"BREW / HTTP/1.1", b"GET /\0 HTTP/1.1", b"\x16\x03\x01", pytest.param(os.urandom(200), id="noise")],
)
def test_what_is_no_http_is_answered_and_not_logged(untouched, daemon, request_line):
    before = daemon.log.read_text()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(daemon.layout.socket))
        connection.sendall(request_line + b"\r\nHost: x\r\n\r\n")
        assert b" 400 " in connection.recv(4096)
    assert daemon.log.read_text() == before


def test_huge_body_is_refused(untouched, daemon):
    found, error = raw(daemon, "POST", "/v1/grants", b" " * (17 << 20))
    assert found == 400
    assert "larger" in error["message"]


def test_hook_with_a_wrong_state(daemon, client):
    grant = client.create(**GOOD)
    target = f"/v1/hooks/create-runtime?grant={grant['id']}"
    # The daemon kills everything in a grant's cgroup, so it must refuse the root cgroup and its own.
    ours = {"pid": daemon.process.pid}
    for state in ({}, {"pid": 0}, {"pid": -1}, {"pid": "1"}, {"pid": True}, {"pid": 1}, {"pid": 1 << 40}, ours):
        with pytest.raises(UsageError, match="pid"):
            client.call("POST", target, state)
    with pytest.raises(GpushareError, match="cannot be watched"):
        client.call("POST", target, {"pid": 4194304})
    assert client.grant(grant["id"])["phase"] == "reserved"


def test_unknown_annotation_is_refused(untouched, client):
    config = {"annotations": {"gpushare.dev/memory": "1GiB", "gpushare.dev/tiem": "30%"}}
    with pytest.raises(UsageError, match="tiem"):
        client.call("POST", "/v1/oci/edit", {"bundle": "/nowhere", "config": config})


def test_tenant_nonsense(client):
    before = client.tenants()
    for name, policy in [
        ("UPPER", {}),
        ("a b", {}),
        ("x" * 600, {}),
        ("team", {"time": "300%"}),
        ("team", {"time": "-1"}),
        ("team", {"time": "50%", "time_limit": "40%"}),
        ("team", {"memory": "64GiB"}),
        ("team", {"memory": "lots"}),
        ("team", {"weight": -1}),
        ("team", {"tier": 10**6}),
        ("team", {"wieght": 1}),
        ("team", {"users": "ada"}),
    ]:
        with pytest.raises((UsageError, RefusedError)):
            client.set_tenant(name, policy)
    with pytest.raises(NotFoundError):
        client.remove_tenant("nobody")
    with pytest.raises(UsageError):
        client.remove_tenant("default")
    assert client.tenants() == before


def test_forbidden_is_a_refusal():
    assert issubclass(ForbiddenError, RefusedError)


def test_names_that_are_not_utf_8(client):
    for ask in (client.grant, client.remove_tenant, client.release, lambda name: client.usage(tenant=name)):
        with pytest.raises(UsageError, match="not UTF-8"):
            ask("caf\udce9")
    with pytest.raises(UsageError, match=r"not UTF-8 after '.*caf\\udce9': write it in UTF-8"):
        client.create(memory="1GiB", time="10%", tenant="caf\udce9")
