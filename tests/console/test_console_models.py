"""Fine-tunes and isolation self-tests as pages, with signed records that nothing had to compute."""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path

import msgspec
import pytest
from console_rig import Reader, base
from fine_tune import HOSTILE, evaluated

from api.api_rig import World
from kvrun.accounts import Role
from kvrun.api import finetunes
from kvrun.audit.record import format_time
from kvrun.control.plane import ControlPlane
from kvrun.deployments.model import DeploymentSpec
from kvrun.finetune.store import FineTunes
from kvrun.isolation.report import Check, IsolationPredicate, Outcome, object_name, sign_result
from kvrun.keys.signing import KeyPurpose, SigningRing


async def test_fine_tunes_are_shown_base_against_tuned_checked_and_deployed(
    world: World,
) -> None:
    world.workspace("acme")
    home = world.services.first_workspace
    world.ids[home] = world.services.accounts.ensure_workspace(home).id
    reader, place = Reader(world.owner), f"/workspaces/{world.ids[home]}/finetunes"
    assert "No fine-tune yet" in (await reader.get(place)).said
    folder = evaluated(world.services.config.layout, "support-1")
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


async def test_a_fine_tune_is_asked_for_followed_cancelled_and_gone_on_with(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.workspace("acme")
    home = world.services.first_workspace
    world.ids[home] = world.services.accounts.ensure_workspace(home).id
    place = f"/workspaces/{world.ids[home]}/finetunes"
    reader, started = Reader(world.owner), list[str]()
    monkeypatch.setattr(finetunes, "require_tools", lambda: None)
    monkeypatch.setattr(finetunes, "run_job", lambda store, ring, name, most: started.append(name))
    store = FineTunes(world.services.config.layout.finetunes)
    line = json.dumps({"prompt": "a", "completion": HOSTILE}) + "\n"
    order = {"name": "support-9", "base": "demo", "data": line * 3}

    refused = await world.owner.post(place, {**order, "data": line + "{}\n"})
    assert refused.status_code == 400
    assert "line 2" in refused.json()["detail"]
    assert not store.given_folder("support-9").exists()
    said = await reader.post(place, name="support-9", model="demo", data="not JSON")
    assert said.status_code == 422
    assert "line 1" in said.text
    assert started == []

    def full(path: Path, content: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(finetunes, "write_private_file", full)
        failed = await world.owner.post(place, order)
    assert failed.status_code == 400
    assert "cannot be kept: No space" in failed.json()["detail"]
    assert not store.given_folder("support-9").exists(), "the name is free again"

    begun = await reader.post(place, name="support-9", model="demo", epochs="5", data=line * 3)
    assert begun.headers["location"].endswith("/finetunes/support-9/job")
    assert started == ["support-9"]
    given = store.given_folder("support-9") / "train.jsonl"
    assert (given.read_text(), given.stat().st_mode & 0o777) == (line * 3, 0o600)
    assert store.job("support-9").plan.epochs == 5
    again = await world.owner.post(place, order)
    assert (again.status_code, again.json()["code"]) == (409, "fine_tune_taken")
    with store.working("support-9") as job:
        note = store.job("support-9")
        store.note_job(
            job, msgspec.structs.replace(note, step=3, steps=12, loss=1.5, what="training")
        )
        page = await reader.get(f"{place}/support-9/job")
        assert "Training, step 3 of 12, loss 1.500" in page.said
        other = await world.owner.post(place, {**order, "name": "another"})
        assert other.status_code == 409
        assert "one is made at a time" in other.json()["detail"]
        await reader.post(f"{place}/support-9/cancel")
        assert (job / "cancel").exists()
        store.note_job(job, msgspec.structs.replace(note, state="cancelled"))
    assert "It was cancelled" in (await reader.get(f"{place}/support-9/job")).said
    resumed = await world.owner.post(f"{place}/support-9/resume")
    assert (resumed.status_code, started) == (202, ["support-9", "support-9"])
    await world.owner.ask("DELETE", f"{place}/support-9")
    assert not given.exists()
    assert store.jobs() == []
    developer = Reader(world.person("dev@example.com", Role.DEVELOPER, home))
    assert "Make the fine-tune" in (await developer.get(place)).said
    auditor = Reader(world.person("auditor@example.com", Role.AUDITOR, home))
    assert "Make the fine-tune" not in (await auditor.get(place)).said


async def test_tasks_of_lm_eval_come_with_an_order_and_are_checked_as_the_command_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("yaml")
    world.workspace("acme")
    home = world.services.first_workspace
    world.ids[home] = world.services.accounts.ensure_workspace(home).id
    place = f"/workspaces/{world.ids[home]}/finetunes"
    started = list[str]()
    monkeypatch.setattr(finetunes, "require_tools", lambda: None)
    monkeypatch.setattr(finetunes, "require_harness", lambda: "lm-eval 0.0")
    monkeypatch.setattr(finetunes, "run_job", lambda store, ring, name, most: started.append(name))
    store = FineTunes(world.services.config.layout.finetunes)
    data = json.dumps({"prompt": "a", "completion": "b"}) + "\n"
    task = (
        "task: colours\ndataset_path: json\ndataset_kwargs: {data_files: {test: examples.jsonl}}\n"
        "test_split: test\noutput_type: multiple_choice\nmetric_list: [{metric: acc}]\n"
    )
    files = {"colours.yaml": task, "examples.jsonl": '{"prompt": "a"}\n'}
    order = {
        "name": "measured",
        "base": "demo",
        "data": data,
        "tasks": ["colours"],
        "task_files": files,
    }
    for changed, said in (
        ({"task_files": {**files, "colours.yaml": task + "x: !function a.b\n"}}, "cannot be read"),
        ({"task_files": {"../colours.yaml": task}}, "no name of a task's file"),
        ({"task_files": {".hidden.yaml": task}}, "no name of a task's file"),
        ({"task_files": {"colours.py": task}}, "no name of a task's file"),
        ({"task_files": {"colours.yaml": task}}, "beside it"),
        ({"task_files": {}}, "no files were given"),
        ({"tasks": []}, "no task is named"),
        ({"tasks": ["shapes"]}, "no task 'shapes'"),
    ):
        refused = await world.owner.post(place, {**order, **changed})
        assert refused.status_code == 400, refused.text
        assert said in refused.json()["detail"]
        assert not store.given_folder("measured").exists()
    assert started == []

    begun = await world.owner.post(place, order)
    assert begun.status_code == 202, begun.text
    given = store.given_folder("measured") / "tasks"
    assert (given / "colours.yaml").read_text() == task
    assert (given / "examples.jsonl").stat().st_mode & 0o777 == 0o600
    note = store.job("measured")
    assert (note.tasks, note.tasks_folder) == (("colours",), str(given))

    reader = Reader(world.owner)
    typed = {"model": "demo", "data": data, "task": "colours"}
    half = await reader.post(place, name="by-form", **typed)
    assert half.status_code == 422
    assert "Its YAML is needed." in half.text
    typed |= {"task_yaml": task.replace("\n", "\r\n"), "task_data": files["examples.jsonl"]}
    done = await reader.post(place, name="by-form", **typed)
    assert done.headers["location"].endswith("/finetunes/by-form/job")
    assert store.job("by-form").tasks == ("colours",)
    assert started == ["measured", "by-form"]


async def test_a_plan_that_takes_more_memory_than_is_allowed_is_refused_with_its_parts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.workspace("acme")
    home = world.services.first_workspace
    world.ids[home] = world.services.accounts.ensure_workspace(home).id
    place = f"/workspaces/{world.ids[home]}/finetunes"
    started = list[int]()
    monkeypatch.setattr(finetunes, "require_tools", lambda: None)
    monkeypatch.setattr(finetunes, "run_job", lambda store, ring, name, most: started.append(most))
    monkeypatch.setattr(finetunes, "half_of_the_machine", lambda: 8 << 30)
    shape = {"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128_256}
    (tmp_path / "config.json").write_text(json.dumps({**shape, "dtype": "bfloat16"}))
    head = json.dumps({f"w{n}": {"dtype": "BF16", "shape": [4096, 4096]} for n in range(200)})
    content = len(head).to_bytes(8, "little") + head.encode()
    (tmp_path / "model.safetensors").write_bytes(content)
    line = json.dumps({"prompt": "a", "completion": "b"})
    order = {"name": "big", "base": str(tmp_path), "data": line}
    refused = await world.owner.post(place, {**order, "rank": 1024})
    assert refused.status_code == 400
    said = refused.json()["detail"]
    assert "31.2 GiB for an adapter of rank 1024" in said
    assert "control.finetune_memory_bytes allows 8.0 GiB" in said
    assert started == []
    page = await Reader(world.owner).post(place, name="big", model=str(tmp_path), data="{}")
    assert page.status_code == 422
    (tmp_path / "config.json").write_text("{}")
    broken = await world.owner.post(place, order)
    assert broken.status_code == 400
    assert "cannot be read" in broken.json()["detail"]
    (tmp_path / "config.json").write_text(json.dumps({**shape, "dtype": "bfloat16"}))
    assert (await world.owner.post(place, order)).status_code == 202
    assert started == [8 << 30]


async def test_a_deployment_shows_the_evaluation_of_what_it_serves_and_only_owners_override(
    world: World,
) -> None:
    folder = evaluated(world.services.config.layout, "support-2")
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
    ring = SigningRing(config.layout.signing_keys, now=time.time)
    signer = ring.load_or_create(KeyPurpose.EVIDENCE)  # valid before what it signs is issued
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
    data = sign_result(result, b"", signer)
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
