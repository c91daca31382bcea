"""A repository is followed with real git: what is not right is refused, and the old goes on."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from policies import EU, US, Repository, allow, make_key

from kvrun.policy.bundle import ActivePolicy, PolicyFolder, SyncOutcome, TenantEntry
from kvrun.policy.errors import PolicyError
from kvrun.policy.held import HeldSession
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
        self.placed: Callable[[], list[HeldSession]] | None = None

    def following(self) -> PolicySync:
        return PolicySync(
            self.folder,
            self.settings,
            lambda: FACTS,
            now=lambda: next(self.clock),
            clock=lambda: 0.0,
            placed=self.placed,
        )

    def sync(self) -> SyncOutcome:
        return self.following().run()

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
    good = world.repository.commit({"eu.yaml": EU})
    world.sync()
    before = world.folder.status().confirmed_at
    world.sync()
    confirmed = world.folder.status().confirmed_at
    assert confirmed > before
    shutil.rmtree(world.repository.folder)
    outcome = world.sync()
    assert (outcome.outcome, len(outcome.problems)) == ("unreachable", 1)
    assert world.folder.status().confirmed_at == confirmed
    assert world.active() == good, "the old revision goes on"


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
    assert outcome.problems == (
        "main:1:1: more than 1048576 bytes come with it: a file that is too large?",
    )
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
    assert outcome.problems[0].startswith(f"main:1:1: {rewritten} does not follow {good}")
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
    unsigned = world.repository.commit({"a.yaml": US})
    assert world.sync().problems == (f"main:1:1: {unsigned} is not signed",)
    assert world.active() == signed, "the old revision goes on"


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


def test_a_revision_is_tried_on_what_is_placed_now(world: World) -> None:
    world.folder.put_tenants([TenantEntry(tenant_ref="a", tenant_class="us")])
    placed = [
        HeldSession("a", blocks={"memory": 3, "disk": 2}),
        HeldSession("stranger", blocks={"disk": 4, "object": 0}),
    ]
    world.placed = lambda: placed
    world.repository.commit({"us.yaml": US})
    assert world.sync().note.endswith("; blocks that have to leave: 6 from disk, 3 from memory")
    placed.clear()
    world.repository.commit({"us.yaml": US.replace("name: us", "name: usa")})
    assert world.sync().note.endswith("; blocks that have to leave: none")


LESS = {
    "a tier": EU.replace("[gpu, memory, disk, object]", "[gpu, disk, object]"),
    "a shorter life": EU.replace("ttl: 7d", "ttl: 6d"),
    "a bound": EU.replace("ttl: 7d", "ttl: 7d\n  max_bytes: 1GiB"),
    "less for one, nothing for another": EU.replace("ttl: 7d", "ttl: 6d") + f"---\n{US}",
}


def unreadable() -> list[HeldSession]:
    raise PolicyError("the log does not say what is placed now: damaged")


@pytest.mark.parametrize("what", LESS)
def test_what_takes_something_away_is_taken_where_it_cannot_be_tried_on_what_is_placed(
    world: World, what: str
) -> None:
    world.folder.put_tenants([TenantEntry(tenant_ref="a", tenant_class="eu")])
    world.repository.commit({"eu.yaml": EU})
    world.sync()
    world.placed = unreadable
    stricter = world.repository.commit({"eu.yaml": LESS[what]})
    outcome = world.sync()
    assert (outcome.outcome, world.active()) == ("activated", stricter)
    assert outcome.note.endswith(
        "; blocks that have to leave: unknown: the log does not say what is placed now: damaged"
    )


MORE = {
    "a region": EU.replace('["eu-*"]', '["eu-*", "ap-*"]'),
    "a longer life": EU.replace("ttl: 7d", "ttl: 8d"),
    "no end": EU.replace("  ttl: 7d\n", ""),
    "the same": f"# the same\n{EU}",
    "another policy": f"{EU}---\n{US}",
    "less for one, more for another": EU.replace("ttl: 7d", "ttl: 6d")
    + "---\n"
    + US.replace("us-*", "*"),
    "less in one tier, more in another": EU.replace("memory, disk", "disk").replace(
        "ttl: 7d", "ttl: 8d"
    ),
}


@pytest.mark.parametrize("what", MORE)
def test_what_does_not_only_take_away_waits_until_it_can_be_tried_on_what_is_placed(
    world: World, what: str
) -> None:
    world.folder.put_tenants(
        [
            TenantEntry(tenant_ref="a", tenant_class="eu"),
            TenantEntry(tenant_ref="b", tenant_class="us"),
        ]
    )
    good = world.repository.commit({"eu.yaml": EU})
    world.sync()
    world.placed = unreadable
    looser = world.repository.commit({"eu.yaml": MORE[what]})
    following = world.following()
    for _ in range(2):
        outcome = following.run()
        assert (outcome.outcome, outcome.revision, world.active()) == ("rejected", looser, good)
        assert outcome.problems == (
            "main:1:1: it cannot be tried on what is placed now (unknown: the log does not say"
            " what is placed now: damaged): until then only what takes something away and gives"
            " nothing is taken",
        )
    world.placed = list
    assert world.sync().outcome == "activated"
    assert world.active() == looser


def test_a_commit_that_could_not_be_tried_is_tried_again_after_an_hour(world: World) -> None:
    good = world.repository.commit({"eu.yaml": EU})
    world.sync()
    asked: list[int] = []

    def once_unreadable() -> list[HeldSession]:
        asked.append(1)
        return unreadable() if len(asked) == 1 else []

    world.placed = once_unreadable
    looser = world.repository.commit({"eu.yaml": MORE["no end"]})
    following = world.following()
    assert [following.run().outcome for _ in range(3)] == ["rejected"] * 3
    assert (len(asked), world.active()) == (1, good)
    world.clock = itertools.count(1_003_700.0)
    assert (following.run().outcome, world.active()) == ("activated", looser)


def test_what_is_placed_is_counted_once_a_commit_and_never_for_a_rejected_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []

    def placed() -> list[HeldSession]:
        counted.append("all of the log")
        return [HeldSession("a", blocks={"disk": 2})]

    world.placed = placed
    following = world.following()
    world.repository.commit({"us.yaml": "x"})
    assert [following.run().outcome for _ in range(3)] == ["rejected"] * 3
    assert counted == []
    good = world.repository.commit({"us.yaml": US})

    def full(folder: PolicyFolder, active: ActivePolicy) -> None:
        raise PolicyError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PolicyFolder, "activate", full)
        for _ in range(3):
            with pytest.raises(PolicyError, match="No space left"):
                following.run()
    outcome = following.run()
    assert (outcome.outcome, world.active()) == ("activated", good)
    assert outcome.note.endswith("; blocks that have to leave: 2 from disk")
    assert len(counted) == 1


def test_a_repository_that_never_was_there_leaves_nothing_active(world: World) -> None:
    world.settings = replace(world.settings, repository=str(world.base / "nowhere"))
    assert world.sync().outcome == "unreachable"
    assert world.active() == ""


def test_the_clone_does_not_grow_with_every_commit(world: World) -> None:
    world.repository.commit({"eu.yaml": EU})
    world.sync()
    clone = world.folder.repository
    for key, value in (("gc.autoPackLimit", "2"), ("gc.autoDetach", "false")):
        subprocess.run(["git", "-C", str(clone), "config", key, value], check=True)
    for number in range(5):
        bad = {"bad.yaml": f"no: {number}\n"} if number == 3 else {"bad.yaml": None}
        commit = world.repository.commit(
            {"eu.yaml": f"# {number}\n{EU}", **(bad if number >= 3 else {})}
        )
        assert world.sync().outcome == ("rejected" if number == 3 else "activated")
    assert world.active() == commit
    assert len(list((clone / "objects" / "pack").glob("*.pack"))) <= 3
    assert world.sync().outcome == "unchanged"
