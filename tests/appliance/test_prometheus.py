"""docs/monitoring: judged by promtool, and by a Prometheus that scrapes an appliance while its scheduler is killed."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.appliance import ROOT, WORKLOAD, Appliance, http
from tests.support.eventually import until
from tests.support.ports import free_port

DOCS = ROOT / "docs" / "monitoring"
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
pytestmark = pytest.mark.skipif(not (PROMTOOL and PROMETHEUS), reason="needs Debian's package prometheus")

CASES = [  # what is seen each minute, the alert of it, and when it fires
    ('gpushare_scheduler_up{node="n"}', "1 1 0 0 0 0", "GpushareSchedulerAway", 4),
    ('gpushare_engine_up{node="n"}', "1 0 0 0 0 0", "GpushareEngineAway", 4),
    ('up{job="gpushare", instance="i"}', "1 0 0 0 0 0", "GpushareWebAway", 4),
    ('gpushare_scheduler_start_timestamp_seconds{node="n"}', "1 2 3 4 5 5", "GpushareRestarts", 5),
    ('gpushare_gpu_memory_unexplained_bytes{gpu="g"}', "2147483648x9", "GpushareUnexplainedMemory", 8),
    ('gpushare_store_behind{kind="events", node="n"}', "2000x9", "GpushareNotWritten", 8),
    ('gpushare_container_suspended_seconds_total{container="c", owner="o"}', "0+60x40", "GpushareWaitsLong", 35),
    ('gpushare_engine_failures_total{call="launch", node="n", reason="away"}', "0+60x40", "GpushareEngineFails", 35),
    ('gpushare_loop_late_seconds_bucket{le="0.1", node="n"}', "0+1x40", "GpushareDecisionsLate", 35),
]  # fmt: skip


def promtool(*arguments: str) -> str:
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False, cwd=DOCS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[str]:
    return re.findall(r"alert: (\w+)", (DOCS / "rules.yml").read_text())


def test_the_rules_are_rules_and_the_configuration_is_one(tmp_path: Path) -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", "rules.yml")
    promtool("check", "config", "--syntax-only", "prometheus.yml")


@pytest.mark.parametrize(("series", "values", "alert", "minute"), CASES, ids=[case[2] for case in CASES])
def test_an_alert_fires_when_it_is_due_and_not_before(
    series: str, values: str, alert: str, minute: int, tmp_path: Path
) -> None:
    seen = [{"series": series, "values": values}]
    if "_bucket" in series:  # one in two is later than the highest bound
        seen.append({"series": series.replace('"0.1"', '"+Inf"'), "values": "0+2x40"})
        seen.append({"series": series.replace('"0.1"', '"1.0"'), "values": "0+2x40"})
    asked = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    tests = [
        {"expr": asked, "eval_time": f"{at}m", "exp_samples": [{"labels": "{}", "value": fires}]}
        for at, fires in ((0, 0), (minute, 1))
    ]
    case = {
        "rule_files": [str(DOCS / "rules.yml")],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": seen, "promql_expr_test": tests}],
    }
    (tmp_path / "case.yml").write_text(json.dumps(case))  # which is YAML, too
    promtool("test", "rules", str(tmp_path / "case.yml"))


def test_every_alert_is_tried() -> None:
    assert {case[2] for case in CASES} == set(rules())


class Prometheus:
    """Scrapes each two seconds, which is how long a scrape may take, too."""

    def __init__(self, folder: Path, appliance: Appliance) -> None:
        (folder / "token").write_text(appliance.token)
        given = (DOCS / "prometheus.yml").read_text()
        for documented, here in {
            "/etc/prometheus/gpushare-token": str(folder / "token"), "127.0.0.1:8000": appliance.url[7:],
            "15s": "2s", "[rules.yml]": f"[{DOCS / 'rules.yml'}]",
        }.items():  # fmt: skip
            assert documented in given
            given = given.replace(documented, here)
        (folder / "prometheus.yml").write_text(given)
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}/api/v1"
        self.process = subprocess.Popen(
            [str(PROMETHEUS), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={address}", "--log.level=error"],
        )  # fmt: skip

    def ask(self, query: str) -> list[dict[str, Any]]:
        try:
            answer = http.get(f"{self.url}/query", params={"query": query})
        except httpx.ConnectError:
            return []  # it is just starting
        if answer.status_code == 503:
            return []
        assert answer.status_code == 200, f"{query}: {answer.text}"
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def value(self, query: str) -> float | None:
        return float(found[0]["value"][1]) if (found := self.ask(query)) else None


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    running = Appliance(tmp_path / "home")
    yield running
    running.close()


def test_promtool_has_nothing_to_say_about_names_units_and_help(appliance: Appliance) -> None:
    """It reads the older text: there a counter's family has its suffix, and an info is a gauge."""
    appliance.launch(WORKLOAD, "--bytes", "64MiB", "--hold", "3600", name="holds", gpu_memory="512MiB")
    headers = {"Authorization": f"Token {appliance.token}"}

    def scraped() -> str:
        text = http.get(f"{appliance.url}/metrics", headers=headers).text
        return text if 'container="holds"' in text and "gpushare_decision_seconds_count" in text else ""

    text = until(scraped)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert {"counter", "gauge", "histogram", "info"} == set(kinds.values())
    for name, kind in kinds.items():
        suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
        text = re.sub(rf"^# (TYPE|HELP) {name} ", rf"# \1 {name}{suffix} ", text, flags=re.MULTILINE)
    text = text.replace(" info\n", " gauge\n").removesuffix("# EOF\n")
    assert judged(text) == (0, "")
    assert judged(text.replace("_total", ""))[0] != 0, "it does look"


def judged(text: str) -> tuple[int, str]:
    done = subprocess.run([str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def prometheus(tmp_path: Path, appliance: Appliance) -> Iterator[Prometheus]:
    running = Prometheus(tmp_path, appliance)
    yield running
    running.process.terminate()
    running.process.wait(60)


def test_prometheus_scrapes_while_the_scheduler_is_killed(appliance: Appliance, prometheus: Prometheus) -> None:
    appliance.launch(WORKLOAD, "--bytes", "64MiB", "--hold", "3600", name="holds", gpu_memory="512MiB")
    held = 'gpushare_container_memory_used_bytes{container="holds",owner="admin"}'
    until(lambda: (prometheus.value(held) or 0) >= 64 << 20, every=0.2)
    started = prometheus.value("gpushare_scheduler_start_timestamp_seconds")
    scheduler = appliance.parts()["scheduler"]
    os.kill(scheduler, signal.SIGSTOP)  # it gives no sign of life, and nobody starts another yet
    until(lambda: prometheus.value("gpushare_scheduler_up") == 0, every=0.2)
    assert prometheus.value(held) >= 64 << 20
    os.kill(scheduler, signal.SIGKILL)
    until(lambda: prometheus.value("gpushare_scheduler_up") == 1, every=0.2)
    until(lambda: prometheus.value("gpushare_scheduler_start_timestamp_seconds") > started, every=0.2)
    until(lambda: (prometheus.value(held) or 0) >= 64 << 20, every=0.2)
    assert prometheus.value('min_over_time(up{job="gpushare"}[5m])') == 1, "no scrape has failed"

    known = {row["metric"]["__name__"] for row in prometheus.ask('{__name__=~"gpushare_.+"}')}
    for query in queries():
        named = set(re.findall(r"gpushare_\w+", query))
        assert named
        assert named <= known, query
        prometheus.ask(query)  # fails for one that Prometheus does not understand


def queries() -> list[str]:
    """All that the dashboard asks."""
    panels = json.loads((DOCS / "dashboard.json").read_text())["panels"]
    return [target["expr"].replace("$node", ".*") for panel in panels for target in panel["targets"]]
