"""What can be a deployment, and that what was chosen is what its `kvrun.toml` says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from deploy_rig import spec
from hypothesis import given
from hypothesis import strategies as st

from kvrun.deployments.errors import SpecError
from kvrun.deployments.spec import check_spec, checked_config, config_text, settings_of

FILE = Path("/home/somebody/kvrun.toml")


def written(**fields: object) -> str:
    made = check_spec(spec(**fields))  # type: ignore[arg-type]
    settings = settings_of(
        made,
        deployment_id="d-1",
        workspace_id="w-1",
        port=8123,
        defaults={"keys.root": "memory", "keys.idle_timeout_s": 50, "gateway.port": 1},
    )
    return config_text(settings)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "../x"),
        ("name", "a b"),
        ("name", "x" * 64),
        ("name", "control"),
        ("model", ""),
        ("model", "--trust-remote-code"),
        ("model", "a\nb"),
        ("engine", "other"),
        ("context_window", 3),
        ("memory_bytes", 0),
        ("disk_bytes", -1),
        ("labels", {"": "x"}),
        ("labels", {"team": "a\x00"}),
        ("labels", {f"k{n}": "" for n in range(33)}),
        ("gpu_ids", (0, 0)),
        ("gpu_ids", (-1,)),
        ("settings", {"gateway.require_auth": False}),
        ("settings", {"engine.extra_args": "--x"}),
    ],
)
def test_what_cannot_be_a_deployment_is_refused_and_named(field: str, value: object) -> None:
    with pytest.raises(SpecError) as refused:
        check_spec(spec(**{field: value}))  # type: ignore[arg-type]
    assert field in refused.value.message


def test_a_deployment_that_has_the_control_planes_name_keeps_it() -> None:
    assert check_spec(spec(name="control"), had_name="control").name == "control"
    with pytest.raises(SpecError, match="choose another"):
        check_spec(spec(name="control"), had_name="chat")


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(SpecError) as refused:
        check_spec(spec("../x", engine="other", memory_bytes=1))
    for field in ("name:", "engine:", "memory_bytes:"):
        assert field in refused.value.message


def test_a_setting_of_the_wrong_type_is_named_by_its_key() -> None:
    text = written(settings={"engine.max_num_seqs": "many"})
    with pytest.raises(SpecError, match=r"engine\.max_num_seqs"):
        checked_config(text, FILE)


def test_the_file_says_what_was_chosen_and_the_control_planes_defaults() -> None:
    text = written(
        stateless=True,
        context_window=4096,
        disk_bytes=0,
        gpu_ids=(1, 3),
        settings={"keys.absolute_timeout_s": 60},
    )
    config = checked_config(text, FILE)
    assert (config.deployment.workspace, config.deployment.name) == ("w-1", "d-1")
    assert config.deployment.stateless
    assert config.deployment.context_window == 4096
    assert config.instance.disk_bytes == 0
    assert config.gateway.multi_tenant
    assert config.gateway.port == 8123
    assert config.gateway.require_auth
    assert config.keys.root == "memory"
    assert (config.keys.idle_timeout_s, config.keys.absolute_timeout_s) == (50, 60)
    assert config.engine.env["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert config.instance.data_dir == FILE.parent / "data"
    assert not config.control.enabled, "it would start a control plane of its own"


@given(st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable()))
def test_no_text_leaves_its_place_in_the_file(text: str) -> None:
    if text.startswith("-"):
        text = f"x{text}"
    settings = tomllib.loads(written(model=text, settings={"deployment.served_model_name": text}))
    assert settings["deployment"]["model"] == text
    assert settings["deployment"]["served_model_name"] == text
    assert set(settings) == {
        "audit",
        "control",
        "deployment",
        "engine",
        "gateway",
        "instance",
        "keys",
    }
