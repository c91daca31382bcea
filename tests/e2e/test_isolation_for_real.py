"""``kvrun doctor isolation`` on a real deployment of the tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from e2e_rig import User, files_with, running, words

from kvrun.gateway.apikeys import load_api_keys
from kvrun.isolation.report import Outcome
from kvrun.isolation.run import Options
from kvrun.isolation.service import self_test, stored_results
from kvrun.isolation.target import CANARY_PREFIX
from kvrun.launch.processes import ENGINE, INSTANCE
from kvrun.launch.stack import Stack
from kvrun.statements.document import Signer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
OPTIONS = Options(rounds=8, words=150)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    settings = {
        "KVRUN_GATEWAY__MULTI_TENANT": "true",
        "KVRUN_GATEWAY__SESSION_TIMEOUT_S": "20",
        "KVRUN_INSTANCE__MATCH_DEADLINE_MS": "20000",
        "KVRUN_INSTANCE__LOAD_DEADLINE_MS": "60000",
    }
    with running(settings=settings) as started:
        yield started


@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_deployment_passes_on_every_tier_and_leaves_signed_evidence_and_no_canary(
    stack: Stack, restarts: bool
) -> None:
    alice = User(stack.url, stack.api_key, "alice")
    kept = alice.complete(words(1))

    def restart() -> None:
        stack.stop(ENGINE, INSTANCE)
        stack.start(INSTANCE, ENGINE)

    config_file = stack.config.layout.data_dir.parent / "kvrun.toml"
    keys_before = load_api_keys(config_file.parent / "api_keys.json")
    stored = self_test(
        stack.config, config_file, replace(OPTIONS, restart=restarts), restart=restart
    )
    found = {check.name: (check.outcome, check.detail) for check in stored.result.checks}
    for name, (outcome, detail) in found.items():
        if name == "object tier" or (name == "disk tier" and not restarts):
            assert outcome is Outcome.SKIPPED
        elif name == "times to first token":
            # A machine that is busy with tests may be too noisy to tell, but never leaks.
            assert outcome is not Outcome.FAIL, detail
        else:
            assert outcome is Outcome.PASS, f"{name}: {detail}"
    assert {"engine memory", "memory tier", "disk tier"} <= set(found)
    assert stored.result.restarted is restarts
    assert stored.result.timing is not None
    assert len(stored.result.timing.same_us) == OPTIONS.rounds

    read = stored_results(stack.config)[0]
    assert read.data == stored.data
    assert read.signer is Signer.TRUSTED
    assert load_api_keys(config_file.parent / "api_keys.json") == keys_before
    assert len(stored.result.erased) == 2
    sessions = json.loads(stack._ask("usage_tenants", offset="0", limit="50", reason="a test"))
    assert [row["tenant"] for row in sessions["rows"]] == ["alice"]
    assert files_with(stack.config.layout.audit, CANARY_PREFIX) == []
    # Others noticed nothing but a restart.
    again = alice.complete(words(1))
    assert again.text == kept.text
    assert again.cached_tokens > 0
