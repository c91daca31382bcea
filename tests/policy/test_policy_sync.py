"""A repository is followed with real git: what is not right is refused, and the old goes on."""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from policies import EU, US, Repository, allow, make_key

from kvrun.policy.bundle import PolicyFolder, SyncOutcome, TenantEntry
from kvrun.policy.matching import InstanceFacts
from kvrun.policy.sync import PolicySync, SyncSettings, revision_of

FACTS = InstanceFacts(region="eu-west-1")


class World:
    """A repository and an installation that follows it."""

    def __init__(self, folder: Path) -> None:
        self.base = folder
        self.repository = Repository(folder / "policies-repository")
        self.folder = PolicyFolder(folder / "residency")
        self.settings = SyncSettings(str(self.repository.folder))
        self.clock = itertools.count(1_000_000.0)

    def sync(self) -> SyncOutcome:
        return PolicySync(
            self.folder, self.settings, FACTS, now=self.clock.__next__, clock=lambda: 0.0
        ).run()

    def active(self) -> str:
        active = self.folder.active()
        return active.origin.revision if active else ""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_good_commit_becomes_active_with_its_author_and_goes_on_from_disk(world: World) -> None:
    first = world.repository.commit({"eu.yaml": EU})
    assert world.sync().outcome == "activated"
    active = world.folder.active()
    assert active is not None
    assert (active.origin.revision, active.origin.author) == (first, "Ada <ada@example.com>")
    assert active.origin.subject == "Change eu.yaml"
    assert [rule.name for rule in revision_of(active, lambda: 0.0).rules] == ["eu"]
    assert world.sync().outcome == "unchanged"
    second = world.repository.commit({"us.yaml": US})
    assert world.sync().outcome == "activated"
    assert world.active() == second
    assert [line.revision for line in world.folder.status().history] == [second, first]


def test_a_look_that_finds_the_active_revision_confirms_it(world: World) -> None:
    world.repository.commit({"eu.yaml": EU})
    world.sync()
    before = world.folder.status().confirmed_at
    world.sync()
    confirmed = world.folder.status().confirmed_at
    assert confirmed > before
    shutil.rmtree(world.repository.folder)
    assert world.sync().outcome == "unreachable"
    assert world.folder.status().confirmed_at == confirmed


BOMB = "a: &a [l,l]\nb: &b [*a,*a]\nc: &c [*b,*b]\n"
BAD = {
    "a mistake": ({"us.yaml": US.replace("gpu", "gpus")}, "policies/us.yaml:8:11"),
    "a failing test": (
        {"eu.yaml": EU.replace("expect: deny", "expect: allow")},
        "policies/eu.yaml:13:5: test 'never in America'",
    ),
    "a YAML bomb": ({"bomb.yaml": BOMB}, "policies/bomb.yaml:1:4: anchors"),
    "a large file": ({"big.yaml": b"#" * (2 << 20)}, "policies/big.yaml:1:1: 2097152 bytes"),
    "exploding CEL": (
        {"us.yaml": US + "when: '[1,2].all(a, [1,2].all(b, true))'\n"},
        "policies/us.yaml:10:7: when: a macro over a list inside another",
    ),
    "deep CEL": ({"us.yaml": US + f"when: '{'(' * 500}1'\n"}, "policies/us.yaml:10:7: when: "),
    "no policies": ({"eu.yaml": None}, "the commit has no .yaml"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_commit_is_refused_with_its_place_and_the_old_goes_on(
    world: World, case: str
) -> None:
    good = world.repository.commit({"eu.yaml": EU})
    world.sync()
    files, problem = BAD[case]
    bad = world.repository.commit(dict(files))
    outcome = world.sync()
    assert (outcome.outcome, outcome.revision) == ("rejected", bad)
    assert any(problem in line for line in outcome.problems), outcome.problems
    assert world.active() == good
    restore: dict[str, str | bytes | None] = {"eu.yaml": EU}
    restore |= {name: None for name in files if name != "eu.yaml"}
    fixed = world.repository.commit(restore)
    assert world.sync().outcome == "activated"
    assert world.active() == fixed


@pytest.mark.long
def test_a_file_of_100_mb_is_refused_with_its_place(world: World) -> None:
    good = world.repository.commit({"eu.yaml": EU})
    world.sync()
    world.repository.commit({"big.yaml": b"#" * (100 << 20)})
    assert world.sync().problems == (
        "policies/big.yaml:1:1: 104857600 bytes; a file may have 1048576",
    )
    assert world.active() == good


def test_a_pack_beyond_the_bound_is_not_taken_in_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvrun.policy.sync.MAX_PACK_BYTES", 1 << 20)
    good = world.repository.commit({"eu.yaml": EU})
    world.sync()
    world.repository.commit({"big.bin": os.urandom(3 << 20)})
    outcome = world.sync()
    assert outcome.outcome == "unreachable"
    assert world.active() == good
    size = sum(f.stat().st_size for f in world.folder.repository.rglob("*") if f.is_file())
    assert size < 1 << 20


def test_a_tree_that_lists_the_same_files_without_an_end_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvrun.policy.sync.MAX_PACK_BYTES", 1 << 20)
    good = world.repository.commit({"eu.yaml": EU})
    world.sync()
    (world.repository.folder / "all").write_text("a: b\n")
    name, kind, mode = world.repository.git("hash-object", "-w", "all"), "blob", "100644"
    for _ in range(4):
        lines = "".join(f"{mode} {kind} {name}\t{n:02}.yaml\n" for n in range(32))
        (world.repository.folder / "all").write_text(lines)
        name, kind, mode = world.repository.mktree("all"), "tree", "040000"
    (world.repository.folder / "all").write_text(f"040000 tree {name}\tpolicies\n")
    top = world.repository.mktree("all")
    bad = world.repository.git("commit-tree", top, "-p", "HEAD", "-m", "a million files")
    world.repository.git("update-ref", "refs/heads/main", bad)
    outcome = world.sync()
    assert (outcome.outcome, outcome.revision) == ("rejected", bad)
    assert outcome.problems[0].startswith("git ls-tree failed"), "it was ended, not listed"
    assert world.active() == good


def test_a_link_out_of_the_repository_is_not_followed(world: World) -> None:
    world.repository.commit({"eu.yaml": EU})
    (world.repository.folder / "policies" / "x.yaml").symlink_to("/etc/passwd")
    world.repository.commit({})
    outcome = world.sync()
    assert outcome.problems == ("policies/x.yaml:1:1: links and submodules are not read",)


def test_a_forced_push_is_refused_unless_it_is_allowed(world: World) -> None:
    world.repository.commit({"eu.yaml": EU})
    good = world.repository.commit({"us.yaml": US})
    world.sync()
    rewritten = world.repository.commit({"us.yaml": None}, amend=True)
    outcome = world.sync()
    assert outcome.outcome == "rejected"
    assert "does not follow" in outcome.problems[0]
    assert world.active() == good
    world.settings = replace(world.settings, allow_rewind=True)
    assert world.sync().outcome == "activated"
    assert world.active() == rewritten


def test_a_rollback_is_a_new_commit(world: World) -> None:
    world.repository.commit({"eu.yaml": EU})
    world.sync()
    world.repository.commit({"us.yaml": US})
    world.sync()
    world.repository.git("revert", "--no-edit", "HEAD")
    assert world.sync().outcome == "activated"
    active = world.folder.active()
    assert active is not None
    assert list(active.files) == ["policies/eu.yaml"]


def test_only_commits_of_allowed_keys_are_taken_where_signatures_are_asked_for(
    world: World, tmp_path: Path
) -> None:
    ada, eve = make_key(tmp_path, "ada"), make_key(tmp_path, "eve")
    world.settings = replace(
        world.settings, require_signed=True, allowed_signers=allow(tmp_path, ada)
    )
    world.repository.commit({"eu.yaml": EU})
    assert "is not signed" in world.sync().problems[0]
    world.repository.commit({"a.yaml": US}, key=eve)
    assert "not among the allowed signers" in world.sync().problems[0]
    assert world.active() == ""
    signed = world.repository.commit({"a.yaml": None}, key=ada)
    assert world.sync().outcome == "activated"
    active = world.folder.active()
    assert active is not None
    assert (active.origin.revision, active.origin.signed_by) == (signed, "ada@example.com")


def test_a_commit_altered_after_it_was_signed_is_refused(world: World, tmp_path: Path) -> None:
    ada = make_key(tmp_path, "ada")
    world.settings = replace(
        world.settings, require_signed=True, allowed_signers=allow(tmp_path, ada)
    )
    world.repository.commit({"eu.yaml": EU}, key=ada)
    raw = world.repository.git("cat-file", "commit", "HEAD")
    changed = tmp_path / "commit"
    changed.write_text(raw.replace("Change eu.yaml", "Change us.yaml") + "\n")
    forged = world.repository.git("hash-object", "-t", "commit", "-w", str(changed))
    world.repository.git("update-ref", "refs/heads/main", forged)
    assert "bad signature" in world.sync().problems[0]


def test_a_tag_is_followed_like_a_branch(world: World) -> None:
    first = world.repository.commit({"eu.yaml": EU})
    world.repository.git("tag", "-a", "-m", "release", "v1")
    world.repository.commit({"us.yaml": US})
    world.settings = replace(world.settings, ref="v1")
    assert world.sync().outcome == "activated"
    assert world.active() == first


def test_no_hook_and_no_filter_of_the_repository_runs(world: World, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for name in ("post-checkout", "post-merge", "reference-transaction", "update"):
        hook = world.repository.folder / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {trap}\n")
    world.repository.commit({"eu.yaml": EU, "../.gitattributes": "* filter=evil\n"})
    assert world.sync().outcome == "activated"
    for name in ("post-checkout", "reference-transaction"):
        hook = world.repository.folder / ".git" / "hooks" / name
        hook.chmod(0o700)
    world.repository.git("config", "core.hooksPath", "/dev/null")
    world.repository.commit({"us.yaml": US})
    world.repository.git("config", "--unset", "core.hooksPath")
    assert world.sync().outcome == "activated"
    assert not trap.exists()


def test_the_same_refusal_again_takes_no_new_line_of_history(world: World) -> None:
    world.repository.commit({"us.yaml": "x"})
    for _ in range(3):
        world.sync()
    assert len(world.folder.status().history) == 1


def test_a_revision_is_tried_on_the_tenants_that_are_known(world: World) -> None:
    world.folder.put_tenants(
        [TenantEntry(tenant_ref="a", tenant_class="us"), TenantEntry(tenant_ref="b")]
    )
    world.repository.commit({"eu.yaml": EU, "us.yaml": US})
    assert world.sync().note == "2 policies, 2 tests, 2 tenants, 1 of them not to be served here"


def test_a_repository_that_never_was_there_leaves_nothing_active(world: World) -> None:
    world.settings = replace(world.settings, repository=str(world.base / "nowhere"))
    assert world.sync().outcome == "unreachable"
    assert world.active() == ""
