"""``kvrun doctor isolation`` on a real deployment of the tiny model, and evidence of it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from e2e_rig import User, files_with, running, words

from kvrun.api.home import home_of
from kvrun.control.plane import ControlPlane
from kvrun.control.rounds import run_round
from kvrun.evidence.export import Request, export_bundle
from kvrun.evidence.period import Period
from kvrun.evidence.scope import scope_of_config
from kvrun.gateway.apikeys import load_api_keys
from kvrun.isolation.report import Outcome
from kvrun.isolation.run import Options
from kvrun.isolation.service import self_test, stored_results
from kvrun.isolation.target import CANARY_PREFIX
from kvrun.launch.processes import ENGINE, INSTANCE
from kvrun.launch.stack import Stack
from kvrun.statements.document import Signer
from support.keycopy import key_traces
from support.spellings import seen_in, spellings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
OPTIONS = Options(rounds=8, words=150)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {
        "KVRUN_STORAGE__URL": f"file://{tmp_path_factory.mktemp('bucket')}",
        "KVRUN_INSTANCE__OBJECT_TIER": "on",
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
        if name == "after a restart" and not restarts:
            assert outcome is Outcome.SKIPPED
        elif name == "times to first token":
            # A machine that is busy with tests may be too noisy to tell, but never leaks.
            assert outcome is not Outcome.FAIL, detail
        else:
            assert outcome is Outcome.PASS, f"{name}: {detail}"
    assert {"engine memory", "memory tier", "disk tier", "object tier"} <= set(found)
    if restarts:
        assert {f"after a restart, {tier} tier" for tier in ("disk", "object")} <= set(found)
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


def test_evidence_holds_no_prompt_no_user_no_key_and_no_token(stack: Stack, tmp_path: Path) -> None:
    kept, gone = "evidence-canary-kept", "evidence-canary-gone"
    prompt = words(9)
    answer = User(stack.url, stack.api_key, kept, session="evidence-canary-talk").complete(prompt)
    User(stack.url, stack.api_key, gone).complete(prompt)
    stack.flush()
    data, launch = stack.config.layout.data_dir, stack._launch
    secrets = {
        "user": kept.encode(),
        "erased user": gone.encode(),
        "session": b"evidence-canary-talk",
        "prompt": prompt[:60].encode(),
        "prompt, further on": prompt[600:660].encode(),
        "API key": stack.api_key.encode(),
        "claim key": launch.claim_key.private_bytes_raw(),
    }
    for role in ("engine_token", "gateway_token", "admin_token"):
        token = getattr(launch, role)
        secrets |= {role: token.encode(), f"{role} in bytes": bytes.fromhex(token)}
    for whose in ((kept, "evidence-canary-talk"), (gone, "default")):
        for number, key in enumerate(key_traces(data, tmp_path, *whose).keys):
            secrets[f"key {number} of {whose[0]}"] = key
    assert stack.erase(gone)
    run_round(ControlPlane(stack.config), reason="scheduled")
    today = datetime.now(UTC).date()
    bundle = export_bundle(
        scope_of_config(stack.config, home_of(stack.config)),
        Request(Period(today - timedelta(days=1), today + timedelta(days=2)), sample=9, full=True),
        tmp_path / "evidence.zip",
    )
    assert seen_in(bundle, secrets) == []
    # The search finds what is there: in plain text, and within the base64 of what is signed.
    there = {"request": answer.request_id.encode(), "type": b"https://kvrun.dev/evidence-bundle/v1"}
    found = {(name, how.split("+")[0]) for _, name, how in seen_in(bundle, there)}
    assert {("request", "plain"), ("type", "base64")} <= found
    with zipfile.ZipFile(bundle) as archive:
        assert any("/certificates/" in name for name in archive.namelist())
    for name, secret in secrets.items():
        for how, text in spellings(secret).items():
            with zipfile.ZipFile(tmp_path / "planted.zip", "w") as planted:
                planted.writestr("some/file.json", b'{"a": "' + text + b'"}')
            assert (name, how) in {
                (n, h) for _, n, h in seen_in(tmp_path / "planted.zip", {name: secret})
            }
