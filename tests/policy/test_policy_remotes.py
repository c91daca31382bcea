"""Policies come over HTTPS and SSH as they do from a folder, with real git on both sides."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from policies import EU, make_key
from test_policy_sync import World

from support.git_servers import git_over_https, play_ssh

TOKEN = "a-token-of-the-forge"


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.repository.commit({"eu.yaml": EU})
    return made


def test_over_https_with_a_token_and_an_authority_of_ones_own(world: World) -> None:
    token_file = world.base / "token"
    token_file.write_text(TOKEN + "\n")
    with git_over_https(world.base, world.base, TOKEN) as (url, authority):
        right = replace(
            world.settings,
            repository=f"{url}/policies-repository/.git",
            token_file=token_file,
            ca_file=authority,
        )
        world.settings = replace(right, ca_file=None)
        refused = world.sync()
        assert refused.outcome == "unreachable"
        assert "certificate" in refused.problems[0]
        world.settings = right
        assert world.sync().outcome == "activated"
        second = world.repository.commit({"eu.yaml": f"# changed\n{EU}"})
        assert world.sync().outcome == "activated"
        assert world.active() == second
        token_file.write_text("another")
        assert world.sync().outcome == "unreachable"
        assert TOKEN not in str(world.folder.status())
    assert world.sync().outcome == "unreachable"
    assert world.active() == second


def test_over_ssh_with_the_key_that_is_set_and_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = play_ssh(world.base / "bin")
    monkeypatch.setenv("PATH", f"{ssh}:{os.environ['PATH']}")
    key = make_key(world.base, "deploy key's")
    world.settings = replace(
        world.settings,
        repository=f"ssh://git@git.example.com{world.repository.folder}",
        ssh_key_file=key,
    )
    assert world.sync().outcome == "activated"
    called = (ssh / "called").read_text().splitlines()
    assert called[:5] == ["-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-i"]
    assert called[5] == str(key)
    assert "git@git.example.com" in called
    assert called[-1] == f"git-upload-pack '{world.repository.folder}'"
    second = world.repository.commit({"eu.yaml": f"# changed\n{EU}"})
    world.settings = replace(
        world.settings, repository=f"git.example.com:{world.repository.folder}"
    )
    assert world.sync().outcome == "activated"
    assert world.active() == second
