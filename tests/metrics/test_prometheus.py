"""A real Prometheus scrapes a real daemon through the adapter, with our rules and the dashboard's queries."""

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from run.waiting import until
from views.scrapes import Site, dashboard

# Queries as in dashboards for dcgm-exporter.
DCGM = (
    'DCGM_FI_DEV_GPU_UTIL{Hostname=~".+", gpu="0", modelName=~".+"} > 90',
    "sum by (UUID) (DCGM_FI_PROF_GR_ENGINE_ACTIVE) > 0.9",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0",
    'DCGM_FI_DEV_FB_FREE{namespace="lab", pod="train-0"} or DCGM_FI_DEV_FB_FREE{exported_pod="train-0"}',
)
PACKAGING = Path(__file__).parents[2] / "packaging"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus here"),
]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Prometheus:
    def __init__(self, directory: Path, target: str) -> None:
        rules = (PACKAGING / "prometheus/gpushare.rules.yml").read_text()
        # The rules' minutes become seconds.
        (directory / "gpushare.rules.yml").write_text(rules.replace("for: 1m", "for: 300ms"))
        config = (PACKAGING / "prometheus/prometheus.yml").read_text().replace("127.0.0.1:9417", target)
        config = config.replace("scrape_interval: 15s", "scrape_interval: 300ms\n    scrape_timeout: 300ms")
        (directory / "prometheus.yml").write_text("global: {evaluation_interval: 200ms}\n" + config)
        self.log = directory / "log"
        listen = f"127.0.0.1:{free_port()}"
        self._address = f"http://{listen}/api/v1/"
        options = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["prometheus", *options, f"--web.listen-address={listen}"], stdout=log, stderr=log
            )

    def ask(self, what: str, **query: str) -> dict:
        try:
            with urllib.request.urlopen(f"{self._address}{what}?{urllib.parse.urlencode(query)}", timeout=20) as answer:
                return json.load(answer)["data"]
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return {}

    def query(self, expression: str) -> list:
        return self.ask("query", query=expression).get("result", [])


@pytest.fixture
def prometheus(site: Site, tmp_path):
    target = urllib.parse.urlsplit(site.adapter).netloc
    started = Prometheus(tmp_path, target)
    yield started
    started.process.kill()
    started.process.wait()


def test_dashboard_and_alerts(site: Site, prometheus: Prometheus) -> None:
    site.work(60, gpu="0")
    site.work(60, gpu="0")
    site.hold()
    until(lambda: prometheus.query("count_over_time(up{job='gpushare'}[1m]) > 3"), "it has scraped", 30)
    groups = prometheus.ask("rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    there = set(re.findall(r"^(gpushare_\w+)[{ ]", site.client.text("/metrics"), re.MULTILINE))
    for title, expression in dashboard():
        if not there.issuperset(re.findall(r"\bgpushare_\w+", expression)):
            continue  # what a simulator does not measure, such as a temperature
        assert until(lambda asked=expression: prometheus.query(asked), f"{title}: {expression}", 20)
    for expression in DCGM:
        assert until(lambda asked=expression: prometheus.query(asked), expression, 20)
    firing = 'ALERTS{alertname="GpushareDeviceUnhealthy",alertstate="firing"}'
    assert prometheus.query(firing) == []
    site.client.set_sim_lost(1, lost=True)
    [alert] = until(lambda: prometheus.query(firing), "the alert fires", 30)
    assert alert["metric"]["gpu_uuid"] == site.client.devices()[1]["id"]
