"""The rest of the node API: facts, documents, metrics, the simulator's statistics."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

import jsonschema
import pytest
from run.running import GPUSHARE
from run.waiting import until

from gpushare import __version__
from gpushare.daemon import config as configuration
from gpushare.daemon.http.routes import ROUTES
from gpushare.errors import FailedError, NotFoundError, UsageError

GIB = 1 << 30


def test_version_and_node(daemon, client):
    assert client.version()["version"] == __version__
    node = client.node()
    assert node["simulated"] is True
    assert node["devices"] == 2
    assert node["pid"] == daemon.process.pid
    assert node["socket"] == str(daemon.layout.socket)
    assert node["sim_dir"] == str(daemon.layout.sim)


def test_devices(client):
    first, second = client.devices()
    assert (first["index"], second["index"]) == (0, 1)
    assert first["id"].startswith("GPU-")
    assert first["id"] != second["id"]
    assert first["capacity"] == {"time": 1000, "memory": 16 * GIB}
    assert first["backend"] == "simulated"
    assert first["health"] == "healthy"
    assert first["context_bytes"] == 16 << 20
    client.create(memory=4 * GIB, time=300, device=0)
    [changed, same] = client.devices()
    assert changed["guaranteed"] == {"time": 300, "memory": 4 * GIB}
    assert changed["allocatable"] == {"time": 700, "memory": 12 * GIB}
    assert same["allocatable"] == {"time": 1000, "memory": 16 * GIB}


def test_simulator_books(client):
    books = client.sim_stats()
    assert [device["uuid"] for device in books["devices"]] == [device["id"] for device in client.devices()]
    assert set(books["devices"][0]) >= {"uuid", "wall_ns", "busy_ns", "bytes", "peak_bytes", "processes"}


def test_openapi_is_valid_and_names_every_call(client):
    document = client.call("GET", "/openapi.json")
    assert document["openapi"] == "3.1.0"
    for route in ROUTES:
        assert route.method.lower() in document["paths"][route.path]
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = re.findall(r'"\$ref": ?"([^"]+)"', json.dumps(document))
    assert references
    for reference in references:
        assert reference.removeprefix("#/components/schemas/") in schemas


@pytest.mark.parametrize(
    ("target", "schema"),
    [
        ("/v1/version", "Version"),
        ("/v1/node", "Node"),
        ("/v1/devices", "Devices"),
        ("/v1/tenants", "Tenants"),
        ("/v1/grants", "Grants"),
        ("/v1/grants?ended=1", "Grants"),
        ("/v1/events", "LeaseEvents"),
    ],
)
def test_answers_are_what_the_document_states(client, target, schema):
    client.create(memory=GIB, time=100)
    client.release(client.create(memory=GIB, time=100)["id"])
    document = client.call("GET", "/openapi.json")
    wanted = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    jsonschema.Draft202012Validator(wanted).validate(client.call("GET", target))


def test_statuses_and_answers_of_calls_are_in_the_document(daemon, client):
    document = client.call("GET", "/openapi.json")

    def call(method, path, body=None, **names):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(daemon.layout.socket))
        connection.request(method, path.format(**names), json.dumps(body) if body is not None else None)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        answers = document["paths"][path.partition("?")[0]][method.lower()]["responses"]
        assert str(response.status) in answers, (method, path, response.status, text)
        content = answers[str(response.status)].get("content")
        assert bool(content) == bool(text)
        if content:
            wanted = {**content["application/json"]["schema"], "components": document["components"]}
            jsonschema.Draft202012Validator(wanted).validate(json.loads(text))
        return json.loads(text or "null")

    call("PUT", "/v1/tenants/{name}", {"time": "10%"}, name="a")
    call("PATCH", "/v1/tenants/{name}", {"users": ["nobody"]}, name="a")
    call("DELETE", "/v1/tenants/{name}", name="a")
    for _ in range(2):
        grant = call("POST", "/v1/grants", {"memory": GIB, "time": 100, "key": "k"})["id"]
    call("GET", "/v1/grants/{id}", id=grant)
    call("PATCH", "/v1/grants/{id}", {"time": 200}, id=grant)
    call("POST", "/v1/grants/{id}/bind", {"kind": "container"}, id=grant)
    call("POST", "/v1/oci/edit", {"bundle": "/nowhere", "config": {"annotations": {"gpushare.dev/grant": grant}}})
    with subprocess.Popen(["sleep", "100"]) as container:
        call("POST", "/v1/hooks/create-runtime?grant={id}", {"pid": container.pid}, id=grant)
        container.kill()
    call("DELETE", "/v1/grants/{id}", id=grant)


def test_metrics_are_prometheus_text(daemon, client):
    daemon.join()
    text = client.text("/metrics")
    line = re.compile(r'[a-z_]+(\{([a-z_]+="[^"]*"(,|\}))+)? [0-9.e+-]+')
    names = set()
    for row in text.splitlines():
        if row.startswith("# "):
            assert row.split()[1] in ("HELP", "TYPE")
            continue
        assert line.fullmatch(row), row
        names.add(row.partition("{")[0])
    assert names >= {
        "gpushare_device_idle_with_waiters_seconds_total",
        "gpushare_device_memory_used_bytes",
        "gpushare_tenant_guarantee_milli",
        "gpushare_grant_busy_seconds_total",
        "gpushare_grant_memory_bytes",
        "gpushare_lease_wait_seconds_bucket",
    }
    assert 'tenant="default"} 2000' in text


def test_second_daemon_is_refused(daemon):
    command = [sys.executable, "-m", "gpushare", "daemon", "--simulate", "1x1GiB"]
    for options in (["--state-dir", str(daemon.state_dir)], ["--state-dir", str(daemon.state_dir / "other")]):
        extra = [] if "other" not in options[1] else ["--socket", str(daemon.layout.socket)]
        done = subprocess.run(
            [*command, *options, *extra], capture_output=True, text=True, cwd=daemon.state_dir, check=False, timeout=30
        )
        assert done.returncode == 1
        assert "another daemon" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert daemon.client.version()


def test_without_a_driver_the_daemon_states_what_to_do(daemon, tmp_path):
    if subprocess.run(["sh", "-c", "ldconfig -p | grep -q libnvidia-ml.so.1"], check=False).returncode == 0:
        pytest.skip("this machine has a driver")
    state = tmp_path / "bare"
    command = [sys.executable, "-m", "gpushare", "daemon", "--state-dir", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=30)
    assert done.returncode == 1
    assert "--simulate" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--simulate", "2 by 16"], 2, "COUNTxMEMORY"),
        (["--simulate", "0x16GiB"], 2, "1 to 16"),
        (["--simulate", "1x16GiBs"], 2, "16GiBs"),
        (["--simulate", "1x1GiB", "--config", "/nowhere/x.toml"], 2, "no such file"),
        (["--frobnicate"], 2, "frobnicate"),
        (["--simulate", "1x1GiB", "--socket", "/tmp/" + "x" * 200], 2, "too long"),
    ],
)
def test_daemon_options(tmp_path, options, status, message):
    command = [sys.executable, "-m", "gpushare", "daemon", "--state-dir", str(tmp_path / "s"), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=30)
    assert done.returncode == status
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_simulator_options_come_from_the_environment(make_daemon, monkeypatch):
    monkeypatch.setenv("GPUSHARE_SIM_CONTEXT_MIB", "300")
    daemon = make_daemon("--simulate", "1x2GiB").start()
    assert daemon.client.devices()[0]["context_bytes"] == 300 << 20


def test_malformed_simulator_option_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSHARE_SIM_KERNEL_NS", "soon")
    command = [
        sys.executable,
        "-P",
        "-m",
        "gpushare",
        "daemon",
        "--state-dir",
        str(tmp_path / "s"),
        "--simulate",
        "1x1GiB",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=30)
    assert done.returncode == 1
    assert "kernel-ns" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ledger_days = 99999999999", "ledger_days"),
        ("ledger_days = 0", "ledger_days"),
        ("[arbiter]\nlease_ms = -5", "arbiter.lease_ms"),
        ("[arbiter]\nlease_ms = 99999999999999999", "arbiter.lease_ms"),
        ("[arbiter]\nbound_ms = -1", "arbiter.bound_ms"),
        ("simulate = 5", "simulate"),
    ],
)
def test_malformed_configuration_is_named(tmp_path, text, message):
    config = tmp_path / "c.toml"
    config.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        configuration.load(config)
    assert str(config) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_malformed_configuration_starts_no_daemon(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("ledger_days = 0")
    command = [*GPUSHARE, "daemon", "--simulate", "1x1GiB", "--state-dir", str(tmp_path / "s"), "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert str(config) in done.stderr
    assert "ledger_days" in done.stderr


def test_containers_do_not_see_the_simulators_log(daemon):
    assert [path.name for path in daemon.layout.sim.iterdir()] == ["sim.sock"]
    assert (daemon.layout.run / "sim.log").exists()


def test_readiness_is_reported_to_systemd(make_daemon, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(20)
        daemon = make_daemon()
        daemon.env["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        daemon.start()
        assert notified.recv(64) == b"READY=1"
        daemon.terminate()
        assert notified.recv(64) == b"STOPPING=1"


def test_config_file(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    config.write_text('simulate = "1x4GiB"\nledger_seconds = 1\n[arbiter]\nlease_ms = 10\n')
    daemon = make_daemon("--config", str(config)).start()
    assert daemon.client.devices()[0]["capacity"]["memory"] == 4 * GIB
    config.write_text("simulte = 1\n")
    done = daemon.cli("daemon", "--config", str(config))
    assert done.returncode == 2
    assert "simulte" in done.stderr


def test_dead_simulator_is_seen(make_daemon):
    client = make_daemon().quicken(health=0.1).start().client
    os.kill(client.node()["sim_pid"], signal.SIGKILL)
    until(lambda: client.devices()[0]["health"] == "unhealthy", "seen")
    with pytest.raises(FailedError, match="simulator"):
        client.sim_stats()
    with pytest.raises(Exception, match="healthy"):
        client.create(memory=GIB, time=100)
    with pytest.raises(NotFoundError):
        client.grant("g-none")
