"""Fine-tunes and isolation self-tests as pages, with signed records that nothing had to compute."""

from __future__ import annotations

import json
import time
from pathlib import Path

from console_rig import Reader, base

from api.api_rig import World
from kvrun.accounts import Role
from kvrun.audit.record import format_time
from kvrun.control.plane import ControlPlane
from kvrun.deployments.model import DeploymentSpec
from kvrun.finetune.evaluation import (
    EVALUATION_NAME,
    STATEMENT_NAME,
    BaseModel,
    Evaluation,
    EvaluationData,
    Machine,
    encode_evaluation,
    sign_folder,
)
from kvrun.finetune.scoring import Score
from kvrun.finetune.store import FineTunes
from kvrun.isolation.report import Check, IsolationPredicate, Outcome, object_name, sign_result
from kvrun.keys.signing import KeyPurpose, SigningRing

HOSTILE = '"><script>alert(1)</script>'


def evaluated(world: World, name: str) -> Path:
    """A fine-tune in the control plane's store whose files are small."""
    layout = world.services.config.layout
    store = FineTunes(layout.finetunes)
    folder = store.folder(name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"kvrun_finetune": "ab" * 12}))
    (folder / "model.safetensors").write_bytes(b"weights")
    plain = Score(loss=2.5, exact_matches=1, examples=8, answer_tokens=40)
    tuned = Score(loss=0.75, exact_matches=7, examples=8, answer_tokens=40)
    evaluation = Evaluation(
        id="ab" * 12,
        name=name,
        evaluated_at=format_time(time.time()),
        seed=7,
        base=BaseModel(model=HOSTILE, digest="cd" * 32),
        adapter_sha256="ef" * 32,
        origin="imported",
        training=None,
        plan=None,
        evaluation=EvaluationData(
            sha256="12" * 32, size_bytes=9, examples=8, split="given", overlap=None
        ),
        base_score=plain,
        tuned_score=tuned,
        machine=Machine(system="Linux", processor="p", device="cpu", threads=1, versions={}),
    )
    (folder / EVALUATION_NAME).write_bytes(encode_evaluation(evaluation))
    ring = SigningRing(layout.signing_keys, now=time.time)
    signed = sign_folder(
        folder,
        evaluation,
        ring.load_or_create(KeyPurpose.EVIDENCE),
        issued_at=format_time(time.time()),
        version="0.0.0",
    )
    (folder / STATEMENT_NAME).write_bytes(signed)
    store.keep(folder, evaluation)
    return folder


async def test_fine_tunes_are_shown_base_against_tuned_checked_and_deployed(
    world: World,
) -> None:
    world.workspace("acme")
    home = world.services.first_workspace
    world.ids[home] = world.services.accounts.ensure_workspace(home).id
    reader, place = Reader(world.owner), f"/workspaces/{world.ids[home]}/finetunes"
    assert "No fine-tune yet" in (await reader.get(place)).said
    folder = evaluated(world, "support-1")
    listed = await reader.get(place)
    assert "2.500 → 0.750" in listed.said
    assert "1 → 7 of 8" in listed.said
    assert "new-deployment?model=" in (await reader.ask("GET", place)).text
    one = await reader.get(f"{place}/support-1")
    assert "Verified: every file is the one that was evaluated" in one.said
    assert "Imported" in one.said
    form = await reader.ask("GET", f"/workspaces/{world.ids[home]}/new-deployment?model={folder}")
    assert f'value="{folder}"' in form.text
    (folder / "model.safetensors").write_bytes(b"changed")
    changed = await reader.get(f"{place}/support-1")
    assert "The evaluation does not hold" in changed.said
    assert "changed: model.safetensors" in changed.said
    # Whoever belongs to another workspace of this control plane sees none of them.
    stranger = Reader(world.person("stranger@example.com", Role.OWNER, "acme"))
    theirs = await stranger.get(f"{base(world)}/finetunes")
    assert "support-1" not in theirs.said
    answer = await stranger.ask("GET", f"{base(world)}/finetunes/support-1")
    assert answer.status_code == 404


async def test_a_deployment_shows_the_evaluation_of_what_it_serves_and_only_owners_override(
    world: World,
) -> None:
    folder = evaluated(world, "support-2")
    spec = DeploymentSpec(name="tuned", model=str(folder), multi_tenant=True, disk_bytes=2**20)
    made = world.services.create_deployment(world.owner_actor, world.workspace("acme"), spec)
    reader = Reader(world.owner)
    page = await reader.get(f"{base(world)}/deployments/{made.id}")
    assert "Evaluation of the model" in page.said
    assert "0.7500" in page.said
    known = world.services.deployments.config_of(made.id).deployment.evaluation_keys
    ring = SigningRing(world.services.config.layout.signing_keys, now=time.time)
    public = ring.all_keys(KeyPurpose.EVIDENCE)[0].private_key.public_key().public_bytes_raw()
    assert public.hex() in known
    served = (await world.owner.get(f"/deployments/{made.id}/evaluation")).json()
    assert served["evaluation"]["tuned_score"]["exact_matches"] == 7
    body = {
        "name": "overridden",
        "model": str(folder),
        "multi_tenant": True,
        "settings": {"deployment.unevaluated_reason": "a trial"},
    }
    where = f"/workspaces/{world.workspace('acme')}/deployments"
    admin = world.person("admin@example.com", Role.ADMIN)
    assert (await admin.post(where, body)).status_code == 403
    assert (await world.owner.post(where, body)).status_code == 201


async def test_a_self_tests_results_are_shown_and_one_of_a_deployment_that_is_away_says_so(
    world: World,
) -> None:
    made = world.deployment("chat")
    config = world.services.deployments.config_of(made.id)
    result = IsolationPredicate(
        issued_at=format_time(time.time()),
        started_at=format_time(time.time()),
        workspace=config.deployment.workspace,
        deployment=made.id,
        engine="vllm 0.32.0",
        version="0.0.0",
        prompt_tokens=900,
        restarted=False,
        outcome=Outcome.FAIL,
        checks=[Check(name="engine memory", outcome=Outcome.FAIL, detail=HOSTILE)],
        timing=None,
        erased=[],
    )
    ring = SigningRing(config.layout.signing_keys, now=time.time)
    data = sign_result(result, b"", ring.load_or_create(KeyPurpose.EVIDENCE))
    prefix = f"{config.deployment.workspace}/deployments/{made.id}"
    ControlPlane(config).storage().create(f"{prefix}/{object_name(result)}", data)
    reader, place = Reader(world.owner), f"{base(world)}/deployments/{made.id}"
    page = await reader.get(f"{place}/isolation")
    assert "engine memory" in page.said
    assert "fail" in page.said
    assert "Nobody known here" not in page.said
    found = (await world.owner.get(f"/deployments/{made.id}/isolation")).json()["items"]
    assert [(item["outcome"], item["signer"]) for item in found] == [("fail", "trusted")]
    download = f"deployments/{made.id}/{object_name(result)}"
    stored = await world.owner.get(
        f"/workspaces/{world.workspace('acme')}/storage/object", params={"key": download}
    )
    assert stored.content == data
    # Nothing runs behind the simulated launcher, so there is nothing to test.
    refused = await world.owner.post(f"/deployments/{made.id}/isolation", {})
    assert refused.status_code == 409
    begun = await reader.post(f"{place}/isolation")
    assert "/runs/" in begun.headers["location"]
