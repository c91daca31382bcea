"""Each alert rule fires and not before, and every query is one, by Prometheus' own tool."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/kvrun.rules.yml"
DASHBOARD = ROOT / "deploy/grafana/kvrun.json"
WHERE = {"workspace": "acme", "deployment": "chat"}
WITNESS = {"witness": "w.test/w1"}


@dataclass(frozen=True)
class Story:
    """What is measured each minute; the rule is silent at ``quiet`` and fires at ``fires``."""

    series: dict[str, str]
    quiet: int
    fires: int | None
    labels: tuple[tuple[str, str], ...] = ()


STORIES: dict[str, tuple[Story, ...]] = {
    "KvrunAlertWaits": (
        Story({'kvrun_alerts_waiting{kind="forked"}': "0x5 1x5"}, 4, 8, (("kind", "forked"),)),
    ),
    "KvrunIntegrityFailure": (Story({"kvrun_blocks_quarantined_total": "0x20 1x20"}, 15, 25),),
    "KvrunErasureUnfinished": (Story({"kvrun_erasures_unfinished": "0x5 1x30"}, 14, 20),),
    "KvrunAuditLogCannotBeWritten": (Story({"kvrun_audit_available": "1x5 0x10"}, 5, 9),),
    "KvrunAuditRecordsLost": (Story({"kvrun_audit_lost_records_total": "0x20 2x20"}, 15, 25),),
    "KvrunKeyLeaseOver": (Story({"kvrun_key_lease_valid": "1x5 0x10"}, 5, 9),),
    "KvrunRegionMismatch": (
        Story(
            {'kvrun_residency_region_mismatch{place="storage"}': "0x5 1x10"},
            4,
            8,
            (("place", "storage"),),
        ),
    ),
    "KvrunLogNotCollected": (
        Story(
            {
                'kvrun_log_collected_timestamp_seconds{log="l"}': "0x60",
                'kvrun_log_stopped{log="l"}': "0x60",
            },
            34,
            40,
            (("log", "l"),),
        ),
        # One that an alert stopped has an alert of its own.
        Story(
            {
                'kvrun_log_collected_timestamp_seconds{log="l"}': "0x60",
                'kvrun_log_stopped{log="l"}': "1x60",
            },
            50,
            None,
        ),
    ),
    "KvrunAuditQuotaNearlyUsed": (
        Story(
            {"kvrun_audit_uncollected_bytes": "10x10 90x20", "kvrun_audit_quota_bytes": "100x40"},
            14,
            20,
        ),
    ),
    "KvrunCollectorFails": (
        Story(
            {'kvrun_collections_total{outcome="error"}': "0x30 0+1x30"},
            30,
            45,
            (("outcome", "error"),),
        ),
        Story({'kvrun_collections_total{outcome="collected"}': "0+9x60"}, 45, None),
    ),
    "KvrunControlStateUnreadable": (Story({"kvrun_control_readable": "1x5 0x20"}, 9, 15),),
    "KvrunWebhookBehind": (Story({"kvrun_webhook_waiting": "0x5 3x40"}, 19, 25),),
    "KvrunDeploymentDown": (
        Story(
            {'kvrun_deployment_state{state="failed"}': "0x5 1x20"}, 6, 10, (("state", "failed"),)
        ),
        Story({'kvrun_deployment_state{state="stopped"}': "1x20"}, 10, None),
    ),
    "KvrunEngineAway": (Story({"kvrun_engine_connected": "1x5 0x20"}, 9, 15),),
    "KvrunRequestsUncached": (
        Story({"kvrun_gateway_uncached_requests_total": "0x10 0+5x40"}, 14, 25),
    ),
    "KvrunEngineFailures": (
        Story({"kvrun_gateway_engine_failures_total": "0x10 0+60x40"}, 12, 25),
    ),
    "KvrunRequestsDenied": (
        Story(
            {
                'kvrun_requests_denied_total{reason="log"}': "0x10 0+60x60",
                "kvrun_requests_admitted_total": "0+60x70",
            },
            15,
            40,
        ),
        Story(
            {
                'kvrun_requests_denied_total{reason="log"}': "0+1x70",
                "kvrun_requests_admitted_total": "0+60x70",
            },
            60,
            None,
        ),
    ),
    "KvrunDiskTierOff": (
        Story(
            {
                "kvrun_disk_available": "1x5 0x30",
                'kvrun_cache_capacity_bytes{tier="disk"}': "100x40",
            },
            9,
            15,
        ),
        Story(
            {"kvrun_disk_available": "0x40", 'kvrun_cache_capacity_bytes{tier="disk"}': "0x40"},
            30,
            None,
        ),
    ),
    "KvrunStorageAway": (Story({"kvrun_object_available": "1x5 0x20"}, 9, 15),),
    "KvrunCiphertextNotDeleted": (Story({"kvrun_object_undeleted_sessions": "0x5 2x120"}, 60, 90),),
    "KvrunKeyCopyRefused": (Story({"kvrun_key_copy_refused": "0x5 1x20"}, 5, 8),),
    "KvrunWitnessSawFork": (
        Story({'kvrun_witness_refused_total{reason="fork"}': "0x20 1x20"}, 15, 25),
        Story({'kvrun_witness_refused_total{reason="proof"}': "0+1x40"}, 25, None),
    ),
    "KvrunWitnessRefuses": (
        Story({'kvrun_witness_refused_total{reason="proof"}': "0x20 1x20"}, 15, 25),
        Story({'kvrun_witness_refused_total{reason="smaller"}': "0x20 1x20"}, 15, 25),
        # Strangers can have these counted as often as they like.
        Story(
            {
                'kvrun_witness_refused_total{reason="unknown_log"}': "0+9x40",
                'kvrun_witness_refused_total{reason="malformed"}': "0+9x40",
                'kvrun_witness_refused_total{reason="unsigned"}': "0+9x40",
                'kvrun_witness_refused_total{reason="old_size"}': "0+9x40",
            },
            25,
            None,
        ),
    ),
    "KvrunWitnessCannotCosign": (Story({"kvrun_witness_available": "1x5 0x20"}, 9, 15),),
    "KvrunSlowFirstByte": (
        Story(
            {
                'kvrun_gateway_first_byte_seconds_bucket{le="10"}': "0x60",
                'kvrun_gateway_first_byte_seconds_bucket{le="30"}': "0+60x60",
                'kvrun_gateway_first_byte_seconds_bucket{le="+Inf"}': "0+60x60",
            },
            9,
            30,
        ),
    ),
}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_story() -> None:
    assert sorted(STORIES) == sorted(rule["alert"] for rule in rules())


def test_promtool_takes_the_rules_and_each_fires_when_it_should(tmp_path: Path) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    tests = [
        {
            "interval": "1m",
            "input_series": [
                {"series": placed(name), "values": values} for name, values in story.series.items()
            ],
            "alert_rule_test": [
                {"eval_time": f"{story.quiet}m", "alertname": rule["alert"], "exp_alerts": []},
                *(
                    [
                        {
                            "eval_time": f"{story.fires}m",
                            "alertname": rule["alert"],
                            "exp_alerts": [expected(rule, story)],
                        }
                    ]
                    if story.fires is not None
                    else []
                ),
            ],
        }
        for rule in rules()
        for story in STORIES[rule["alert"]]
    ]
    file = tmp_path / "tests.yml"
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    promtool("test", "rules", str(file))


def test_promtool_takes_every_query_of_the_dashboard(tmp_path: Path) -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert queries
    plain = [re.sub(r"\$\{?__\w+\}?", "5m", query) for query in queries]
    plain = [re.sub(r"\$\{?\w+\}?", "x", query) for query in plain]
    recorded = [{"record": f"panel:query:{n}", "expr": query} for n, query in enumerate(plain)]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    promtool("check", "rules", "--lint=none", str(file))


def where(series: str) -> dict[str, str]:
    """The labels that every metric of the process has which exports ``series``."""
    return WITNESS if series.startswith("kvrun_witness_") else WHERE


def placed(series: str) -> str:
    """A series with the labels that every metric of its process has."""
    name, _, more = series.rstrip("}").partition("{")
    labels = [f'{key}="{value}"' for key, value in where(name).items()]
    return f"{name}{{{','.join([*labels, *([more] if more else [])])}}}"


def expected(rule: dict[str, Any], story: Story) -> dict[str, Any]:
    """The alert as Prometheus would send it."""
    labels = {**where(next(iter(story.series))), **dict(story.labels)}
    texts = {
        name: re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)
        for name, text in rule["annotations"].items()
    }
    return {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": texts}
