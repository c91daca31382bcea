"""The operations page, the dashboard and the alert rules name what the processes really export."""

from __future__ import annotations

import json
import re
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kvrun.config import load_config, parse_config
from kvrun.control.collector import CollectOutcome, CollectReport
from kvrun.control.metrics import CollectorMetrics
from kvrun.control.plane import ControlPlane
from kvrun.control.rounds import RoundReport, run_round
from kvrun.control.witness_metrics import WitnessMetrics
from kvrun.control.witness_state import WitnessState
from kvrun.deployments.metrics import DeploymentMetrics
from kvrun.deployments.service import Deployments
from kvrun.gateway.metrics import GatewayMetrics
from kvrun.keys.opening import metrics_of, serving_keys
from kvrun.state import Database
from kvrun.telemetry.exposition import render
from support.daemon import Daemon
from support.unix_http import get

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
LABELS = {"workspace": "default", "deployment": "default"}
WITNESS = {"witness": "witness.test/w1"}
NAME = re.compile(r"\bkvrun_[a-z0-9_]+\b")


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Every sample's name and labels, of a real daemon, a collector that collected, a gateway,
    a key service and a witness."""
    gateway = GatewayMetrics(LABELS)
    gateway.answered("chat", 200)
    gateway.refusals.labels("bad_identity").inc()
    gateway.routed.labels("us-east-1").inc()
    with tempfile.TemporaryDirectory(prefix="kvr-", dir="/tmp") as folder:
        daemon = Daemon(
            Path(folder),
            settings='metrics_socket = "d/run/metrics.sock"\nmetrics_tenants = 1\n'
            '[gateway]\nport = 1\n[engine]\ntransport = "unix"\n',
        )
        daemon.start()
        try:
            (daemon.socket.parent / "admin.token").write_text(daemon.admin_token)
            plane = ControlPlane(load_config(daemon.config, {}))
            collector = CollectorMetrics(plane)
            assert not collector.readiness().ready
            collector.round_done(run_round(plane, reason="on_demand"), 0.1)
            assert collector.readiness().ready
            texts = [
                gateway.render().decode(),
                get(daemon.data / "run" / "metrics.sock", "/metrics")[1],
            ]
            texts.append(collector.render().decode())
            database = Database.open(f"sqlite:///{folder}/control.db")
            deployments = Deployments(database, Path(folder) / "home")
            own = deployments.register_own(plane.config, daemon.config)
            texts.append(render(DeploymentMetrics(deployments, [own])).decode())
            database.close()
            texts.append(key_service(Path(folder) / "keys"))
            witnessing = witness(Path(folder) / "witness")
        finally:
            daemon.stop()
    return {**labels_of(texts, LABELS), **labels_of([witnessing], WITNESS)}


def labels_of(texts: list[str], always: dict[str, str]) -> dict[str, set[str]]:
    """Every sample's name and labels; each carries ``always``."""
    found: dict[str, set[str]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                assert sample.labels.items() >= always.items(), sample
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def witness(folder: Path) -> str:
    """What a witness exports, which serves no deployment."""
    state = WitnessState(folder, WITNESS["witness"], now=time.time)
    try:
        metrics = WitnessMetrics(state, 1)
        assert metrics.readiness().ready
        return metrics.render().decode()
    finally:
        state.close()


def key_service(folder: Path) -> str:
    """What the key service of a deployment exports."""
    folder.mkdir()
    config = parse_config(
        '[keys]\nmode = "service"\nroot = "memory"\n', {}, source=folder / "kvrun.toml"
    )
    with serving_keys(config) as server:
        metrics = metrics_of(config, server)
        assert metrics.readiness().ready
        return metrics.render().decode()


def families(exported: dict[str, set[str]]) -> set[str]:
    """Names as the page lists them: one for all samples of a histogram, none for ``_created``."""
    histograms = {name.removesuffix("_bucket") for name in exported if name.endswith("_bucket")}
    names = set()
    for name in exported:
        base = re.sub(r"_(bucket|sum|count|created)$", "", name)
        if name.endswith("_created"):
            continue
        names.add(base if base in histograms else name)
    return names


def test_the_page_lists_every_metric_and_no_other(exported: dict[str, set[str]]) -> None:
    listed = re.findall(r"^\| `(kvrun_\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(families(exported))


def test_the_page_lists_every_label(exported: dict[str, set[str]]) -> None:
    rows = re.findall(r"^\| `(kvrun_\w+)` \| ([^|]*)\|", PAGE, re.MULTILINE)
    for name, labels in rows:
        found = exported.get(name) or exported[f"{name}_bucket"] - {"le"}
        assert set(re.findall(r"`(\w+)`", labels)) == found - {*LABELS, *WITNESS}, name


def expressions() -> list[str]:
    dashboard = json.loads((ROOT / "deploy/grafana/kvrun.json").read_text(encoding="utf-8"))
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    found += [item.get("definition", "") for item in dashboard["templating"]["list"]]
    rules = yaml.safe_load((ROOT / "deploy/prometheus/kvrun.rules.yml").read_text(encoding="utf-8"))
    found += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return [text for text in found if text]


def test_dashboard_and_rules_name_only_what_is_exported(exported: dict[str, set[str]]) -> None:
    named = {name for text in expressions() for name in NAME.findall(text)}
    assert named
    assert named <= set(exported), sorted(named - set(exported))


def test_dashboard_and_rules_use_only_labels_that_are_there(exported: dict[str, set[str]]) -> None:
    for text in expressions():
        there = {label for name in NAME.findall(text) for label in exported[name]}
        used = set(re.findall(r"[{,]\s*(\w+)\s*=~?", text))
        for labels in re.findall(r"\b(?:by|on|ignoring) \(([^)]*)\)", text):
            used |= {label.strip() for label in labels.split(",")}
        assert used <= there, text


def test_every_metric_is_in_the_dashboard_or_in_a_rule(exported: dict[str, set[str]]) -> None:
    used = {name.removesuffix("_bucket") for text in expressions() for name in NAME.findall(text)}
    assert families(exported) <= used


def test_every_rule_says_what_happened_and_how_bad_it_is() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/kvrun.rules.yml").read_text(encoding="utf-8"))
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]


def test_the_collector_is_not_ready_while_a_log_is_stopped_or_away(tmp_path: Path) -> None:
    (tmp_path / "kvrun.toml").write_text('[instance]\ndata_dir = "d"\n')
    metrics = CollectorMetrics(ControlPlane(load_config(tmp_path / "kvrun.toml", {})))
    for outcome in CollectOutcome:
        report = RoundReport(logs=[CollectReport(source="a", outcome=outcome)])
        metrics.round_done(report, 0.1)
        good = outcome in ("collected", "unchanged", "retired")
        assert metrics.readiness().ready is good, outcome
    metrics.round_done(None, 0.1)
    assert not metrics.readiness().ready
    assert b'kvrun_collections_total{deployment="default",outcome="error"' in metrics.render()
