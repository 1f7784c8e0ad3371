"""The metrics as Prometheus reads them: names, labels, alerts, the dashboard and the adapter."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import msgspec
import pytest
from run.waiting import until
from views import tops
from views.scrapes import dashboard, samples

from gpushare.adapters.prometheus import server as server_of
from gpushare.adapters.prometheus.server import CONNECTIONS_MAX, Server, request_of
from gpushare.api.remote import Attachment, Link
from gpushare.api.sensors import Sensors
from gpushare.api.types import Device
from gpushare.cli.adapters.prometheus import FILES
from gpushare.cli.main import main
from gpushare.daemon.accounts.attachments import Attachments
from gpushare.daemon.http import device_metrics, remote_metrics
from gpushare.inject.pod import LABEL_MAX, Pod, pod_of

ROOT = Path(__file__).parents[2]
RULES = ROOT / "packaging/prometheus/gpushare.rules.yml"
POD_LABELS = {"namespace", "pod", "container", "pod_uid"}
WORDS = {"le", "instance", "job", "alertstate", "alertname"}
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here: install prometheus")


def expressions() -> list[str]:
    text = re.sub(
        r"expr: >-\n((?: {10,}.*\n)+)", lambda found: "expr: " + " ".join(found[1].split()) + "\n", RULES.read_text()
    )
    return re.findall(r"expr: (.*)", text) + [expression for _, expression in dashboard()]


def read(address: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method=method), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@needs_promtool
def test_promtool_finds_no_fault(site, tmp_path):
    text = site.client.text("/metrics")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for file in (RULES, ROOT / "tests/metrics/alerts.yml", ROOT / "packaging/prometheus/prometheus.yml"):
        shutil.copy(file, tmp_path)
    for command in (("check", "config", "prometheus.yml"), ("test", "rules", "alerts.yml")):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def labels_of(text: str) -> dict[str, set[str]]:
    """Of each metric, those that its samples have."""
    found: dict[str, set[str]] = {}
    for name, own, _ in samples(text):
        found.setdefault(name, set()).update(own)
    return found


def measured(site) -> str:
    """The lines of a device's metrics, of which the driver says all that a driver can; a simulated one is silent."""
    sensors = Sensors(
        temperature_celsius=64, power_milliwatts=412_500, power_limit_milliwatts=700_000, sm_clock_mhz=1980,
        memory_clock_mhz=2619, utilization_percent=97, memory_utilization_percent=41, ecc_errors=3, slowed_by=["heat"],
    )  # fmt: skip
    device = msgspec.convert(site.client.devices()[1], Device)
    return "\n".join(device_metrics.families([msgspec.structs.replace(device, sensors=sensors)], {}))


def attached() -> str:
    """The lines of attachments, of which one grant has two, and a third has ended."""
    counted = Attachments(SimpleNamespace(attachment=lambda row: None))  # type: ignore[arg-type]
    before = msgspec.convert(tops.attachment(bytes_out=1 << 40), Attachment)  # from before this run of the daemon
    now = [msgspec.convert({**tops.attachment(id=name), "created_ns": 2 * 10**18}, Attachment) for name in "bc"]
    for one in (before, *now):
        counted.record(one, "lab")
    counted.record(msgspec.structs.replace(before, bytes_out=before.bytes_out + 5), "lab")
    over = msgspec.structs.replace(now[0], ending="lost", ended_ns=3 * 10**18, bytes_in=now[0].bytes_in + 2)
    for _ in range(2):
        counted.record(over, "lab")
    slow = msgspec.structs.replace(now[1], link=Link(kind="tls", rtt_us=1100))
    live = SimpleNamespace(id="g-1", record=SimpleNamespace(tenant="lab"), attachments={"a": before, "c": slow})
    state = _State([live, SimpleNamespace(id="g-2", record=live.record, attachments={})])
    context = SimpleNamespace(state=state, accounts=SimpleNamespace(attachments=counted))
    return "\n".join(remote_metrics.families(context))  # type: ignore[arg-type]


class _State(list[object]):
    tenants = (SimpleNamespace(name="idle"), SimpleNamespace(name="lab"))


def test_attachments_are_counted_once_and_over_this_run_of_the_daemon_alone():
    found = {(name, *own.values()): value for name, own, value in samples(attached())}
    assert found["gpushare_remote_attachments", "lab"] == 2 and found["gpushare_remote_attachments", "idle"] == 0
    assert found["gpushare_remote_bytes_total", "lab", "in"] == 2 * (3 << 20) + 2
    assert found["gpushare_remote_bytes_total", "lab", "out"] == 5
    ended = {key[1]: value for key, value in found.items() if key[0] == "gpushare_remote_attachments_ended_total"}
    assert ended == {**dict.fromkeys(("detached", "expired", "server", "released", "relay"), 0), "lost": 1}
    assert found["gpushare_remote_link_rtt_seconds", "g-1", "lab"] == 0.0011


def test_alerts_and_panels_name_what_there_is(site):
    labels = labels_of(site.client.text("/metrics")) | labels_of(measured(site))
    board = json.loads((ROOT / "packaging/grafana/gpushare.json").read_text())
    asked = [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    for expression in expressions() + asked:
        names = re.findall(r"\bgpushare_\w+", expression) or re.findall(r"\b(?:up|ALERTS)\b", expression)
        assert names, expression
        known = WORDS.union(*(labels[name] for name in names if name.startswith("gpushare_")))
        grouped = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
        words = {word.strip() for group in grouped for word in group.split(",")}
        words |= {
            *re.findall(r"(\w+)(?:=~?|!~|!=)\"", expression),
            *re.findall(r"label_values\(.*, (\w+)\)", expression),
        }
        assert words <= known, expression
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            own = WORDS.union(*(labels[name] for name in re.findall(r"\bgpushare_\w+", target["expr"])))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= own, panel["title"]


def test_what_the_driver_measures_has_the_units_of_prometheus(site):
    found = {(name, own.get("reason")): value for name, own, value in samples(measured(site)) if own["gpu"] == "1"}
    for name, value in {
        "temperature_celsius": 64, "power_watts": 412.5, "power_limit_watts": 700, "sm_clock_hertz": 1.98e9,
        "memory_clock_hertz": 2.619e9, "utilization_ratio": 0.97, "memory_utilization_ratio": 0.41,
        "ecc_errors_total": 3,
    }.items():  # fmt: skip
        assert found[f"gpushare_device_{name}", None] == pytest.approx(value)
    slowed = {reason: value for (name, reason), value in found.items() if name == "gpushare_device_slowed"}
    assert slowed == {"power": 0, "heat": 1, "hardware": 0}
    names = {name for name, _, _ in samples(site.client.text("/metrics"))}
    assert not names & {"gpushare_device_temperature_celsius", "gpushare_device_power_watts"}, (
        "a simulator makes none up"
    )


def test_every_metric_is_documented(site):
    """docs/reference/metrics.md has a row for each, with the type, labels and words that the daemon gives."""
    text = site.client.text("/metrics")
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
    labels: dict[str, set[str]] = {}
    for name, own, _ in samples(text + measured(site) + "\n" + attached()):
        labels.setdefault(re.sub("_(bucket|count|sum)$", "", name), set()).update(own.keys() - POD_LABELS - {"le"})
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"\| `(gpushare_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|", page)
    documented = [(name, kind, set(re.findall(r"`(\w+)`", own)), words) for name, kind, own, words in rows]
    notified = dict(re.findall(r"# HELP (\S+) (.*)", text))
    assert documented == [(name, kinds[name], labels.get(name, set()), notified[name]) for name in notified]


def test_pods_are_named_and_stay_so_over_a_restart(site):
    def own() -> list[dict[str, str]]:
        found = samples(site.client.text("/metrics"))
        return [labels for name, labels, _ in found if name == "gpushare_grant_memory_limit_bytes"]

    [row] = [row for row in own() if row["grant"] == site.pod]
    assert (row["namespace"], row["pod"], row["container"]) == ("lab", "train-0", "main")
    assert row["gpu_uuid"] in {device["id"] for device in site.client.devices()}
    assert "pod_uid" not in row, "one with a quote and a line's end is nobody's"
    site.daemon.kill()
    site.daemon.start()
    assert [again for again in own() if again["grant"] == site.pod] == [row]


def test_what_annotations_may_say():
    assert pod_of(None) == pod_of(["x"]) == pod_of({"io.kubernetes.pod.name": 1}) == Pod()
    assert pod_of({"io.kubernetes.pod.name": "x" * (LABEL_MAX + 1)}) == pod_of({"io.kubernetes.pod.name": "é"}) == Pod()
    there = {"io.kubernetes.cri.sandbox-name": "p", "io.kubernetes.cri.container-name": "c"}
    assert pod_of(there) == Pod(pod="p", container="c")


def test_tenants_have_exact_sums(site):
    def of(name: str, **wanted: str) -> float:
        found = samples(site.client.text("/metrics"))
        return sum(value for own, labels, value in found if own == name and wanted.items() <= labels.items())

    assert site.work(0.3).wait(20) == 0
    busy = until(lambda: of("gpushare_tenant_busy_seconds_total", tenant="default"), "its period ends", 20)
    assert of("gpushare_device_busy_seconds_total") == pytest.approx(busy)
    # Includes its last work, which was done as its process ended.
    assert of("gpushare_tenant_gpu_seconds_total", tenant="default") >= busy
    [usage] = [row for row in site.client.usage(by="tenant")["rows"] if row["tenant"] == "default"]
    assert usage["busy_ns"] / 1e9 == pytest.approx(busy), "the ledger says the same"


def test_what_a_grant_got_last_is_there_when_it_has_ended(site):
    def of(name: str) -> dict[str, float]:
        found = samples(site.client.text("/metrics"))
        return {labels["grant"]: value for own, labels, value in found if own == name}

    before = of("gpushare_grant_busy_seconds_total")
    assert site.work(0.1).wait(20) == 0
    until(lambda: len(site.client.grants()) == 1, "its grant ends")
    [ended] = [grant for grant in site.client.grants(ended=True) if grant["ended_ns"] and grant["id"] not in before]
    assert of("gpushare_grant_busy_seconds_total")[ended["id"]] == ended["devices"][0]["busy_ns"] / 1e9 > 0
    assert of("gpushare_grant_leased_seconds_total")[ended["id"]] == ended["devices"][0]["leased_ns"] / 1e9
    assert ended["id"] not in of("gpushare_grant_memory_limit_bytes"), "it has none any more"
    lines = [line.rpartition(" ")[0] for line in site.client.text("/metrics").splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))


def test_names_of_dcgm_say_the_same(site):
    def notified() -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for name, labels, value in samples(read(address)[1]):
            if name.startswith("DCGM_"):
                assert labels["Hostname"] == socket.gethostname()
                found.setdefault(name, {})[f"{labels['gpu']} {labels.get('pod', '')}".strip()] = value
        return found

    address = site.adapter
    assert set(notified()["DCGM_FI_DEV_GPU_UTIL"]) == {"0", "0 train-0", "1"}
    work = site.work(60, gpu="1")
    util = until(lambda: (now := notified().get("DCGM_FI_DEV_GPU_UTIL", {})) and now["1"] > 90 and now, "it works", 20)
    work.kill()
    assert util == {"0": 0.0, "0 train-0": 0.0, "1": util["1"]}
    now, (zero, one) = notified(), site.client.devices()
    used, free = now["DCGM_FI_DEV_FB_USED"], now["DCGM_FI_DEV_FB_FREE"]
    assert free["0 train-0"] == 1024
    assert sum(used.values()) + sum(free.values()) == (zero["capacity"]["memory"] + one["capacity"]["memory"]) / (
        1 << 20
    )
    assert now["DCGM_FI_PROF_GR_ENGINE_ACTIVE"].keys() == used.keys()


@pytest.mark.parametrize("what", FILES)
def test_rules_and_dashboard_come_with_the_wheel(what, capsys):
    assert main(["adapter", "prometheus", "--print", what]) == 0
    assert capsys.readouterr().out == (ROOT / "packaging" / FILES[what]).read_text()


@pytest.mark.promise("metrics-port")
def test_the_adapter_answers_one_question(site):
    address = site.adapter
    status, text = read(address)
    assert status == 200
    names = {name for name, _, _ in samples(text) if not name.startswith("DCGM_")}
    assert names == {name for name, _, _ in samples(site.client.text("/metrics"))}
    assert read(address.replace("/metrics", "/v1/grants"))[0] == 404
    assert read(address, "POST")[0] == 405
    where = urlsplit(address)
    for noise in (b"\0" * 20_000, b"GET\r\n\r\n", b""):
        with socket.create_connection((where.hostname, where.port), timeout=20) as raw:
            raw.sendall(noise)
            raw.shutdown(socket.SHUT_WR)
            answered = raw.recv(100)
            assert answered.startswith(b"HTTP/1.1 400 ") or not answered
    site.daemon.kill()
    assert until(lambda: read(address)[0] == 503, "it says that nobody answers", 20)
    site.daemon.start()
    assert until(lambda: read(address)[0] == 200, "it asks again", 20)


@pytest.mark.promise("metrics-port")
def test_those_who_ask_nothing_shut_nobody_out(site):
    where = urlsplit(site.adapter)
    with contextlib.ExitStack() as idle:
        for number in range(CONNECTIONS_MAX + 8):
            one = idle.enter_context(socket.create_connection((where.hostname, where.port), timeout=20))
            with contextlib.suppress(OSError):  # it was closed to make room
                one.sendall(b"GET /met" if number % 2 else b"")
        assert [read(site.adapter)[0] for _ in range(3)] == [200] * 3


def test_a_failure_is_not_the_answer_for_ever(monkeypatch):
    """As when no thread can be started, or a daemon of another version answers."""

    class Daemon:
        def __init__(self):
            self.answers = [ValueError("what is this?"), "gpushare_devices 1\n"]

        def text(self, target):
            found = self.answers.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

    async def story():
        server = Server(Daemon())
        async with await server.start("127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            for status in (b"503", b"200"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
                assert (await reader.read()).split(b" ")[1] == status
                writer.close()

    monkeypatch.setattr(server_of, "ANSWER_SECONDS", -1)
    asyncio.run(story())


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", 200),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", 200),
        (b"GET /metricsx HTTP/1.1\r\n\r\n", 404),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"", 400),
    ],
)
def test_requests(header, status):
    assert request_of(header)[0] == status
