"""A request to erase one person that is cut short anywhere is finished by asking again, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvrun.config import KvrunConfig, load_config
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import ChildOutcome, ErasureStatement, RequestKind
from kvrun.erasure.commitment import commit
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.joint_request import JointRequestStore
from kvrun.erasure.ledger import ErasureLedger
from kvrun.erasure.plan import ErasureScope
from kvrun.erasure.targets import NoEngines
from kvrun.instance.erasures import ErasureRequest
from kvrun.instance.parts import certificates_folder, open_erasures, open_parts
from kvrun.launch import erasing, joint_erasures
from kvrun.launch.erasing import plan_erasure
from kvrun.launch.joint_erasures import (
    JointAsked,
    JointErased,
    JointErasureOpenError,
    erasing_jointly,
    open_requests,
    targets_of,
)

ALICE = JointAsked("default", "Alice-Private", "DSAR-123", "tests", "GDPR Art. 17")


class Killed(BaseException):
    """Stands for the end of the process at that place."""


@dataclass
class World:
    """Deployments that do not run; a user is in each."""

    configs: list[KvrunConfig]

    def visit(self, user_id: str = ALICE.subject) -> None:
        """The person has a session everywhere again."""
        for config in self.configs:
            with open_parts(config) as parts:
                parts.instance.open_session(user_id, "one")

    def living(self, user_id: str = ALICE.subject) -> int:
        scope = {"kind": "user", "tenant": user_id}
        return sum(plan_erasure(config, scope, offline=True).tenants for config in self.configs)

    def ask(self, asked: JointAsked = ALICE, *, certify_pending: bool = False) -> JointErased:
        """Plan it and confirm the plan."""
        tokens = [plan_erasure(config, asked.scope, offline=True).token for config in self.configs]
        targets = targets_of(self.configs, asked, tokens)
        with erasing_jointly(targets, asked, unknown={}, certify_pending=certify_pending) as done:
            pass
        return done

    def statements(self, reference: str = ALICE.reference) -> dict[str, ErasureStatement]:
        archives = [CertificateArchive(certificates_folder(config)) for config in self.configs]
        found = [statement for archive in archives for statement in archive.statements()]
        return {item.id: item for item in found if item.request.reference == reference}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    # The test's process is to stay one that a debugger may look at.
    monkeypatch.setattr(erasing, "harden_process", lambda: None)
    return World([deployment(tmp_path / name) for name in ("a", "b")])


def deployment(folder: Path) -> KvrunConfig:
    (folder / "d").mkdir(parents=True, mode=0o700)
    file = folder / "kvrun.toml"
    file.write_text(
        f'[deployment]\nname = "{folder.name}"\n'
        f'[instance]\ndata_dir = "{folder}/d"\nmemory_bytes = "64MiB"\n'
    )
    return load_config(file, {})


def check_done(world: World, done: JointErased, *, keys: int = 2) -> None:
    """One parent over one certificate for each erasure, each opened by what was handed out."""
    statements = world.statements()
    (parent,) = [item for item in statements.values() if item.children]
    assert (parent.id, parent.request.legal_basis) == (done.parent.id, ALICE.legal_basis)
    listed = {child.certificate_id for child in parent.children}
    assert {item.id for item in statements.values() if item is not parent} == listed
    erased = [key for made in listed for key in statements[made].keys if key.session_ref]
    assert len(erased) == keys
    assert set(done.openings) == set(statements)
    for made, opening in done.openings.items():
        assert commit(opening.encode()) in statements[made].scope.commitments
        assert ALICE.subject in opening
    assert world.living() == 0
    assert open_requests(world.configs[0]) == []
    assert b"Private" not in b"".join(
        path.read_bytes() for path in world.configs[0].layout.erasure.rglob("*") if path.is_file()
    )


def kill_after(
    patch: pytest.MonkeyPatch, place: object, name: str, last: int, seen: list[str]
) -> None:
    """End the process after the call of that number among all that are watched."""
    original: Callable[..., Any] = getattr(place, name)

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(name)
        result = original(*given, **named)
        if len(seen) > last:
            raise Killed
        return result

    patch.setattr(place, name, watched)


STEPS = ("save", "erase", "save", "erase", "save", "save", "certify_parent")


@pytest.mark.parametrize("last", [1, 2, 5, 6])
def test_wherever_it_ends_asking_again_certifies_once(
    world: World, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.visit()
    seen: list[str] = []
    with monkeypatch.context() as patch:
        kill_after(patch, joint_erasures, "erase", last, seen)
        kill_after(patch, joint_erasures, "certify_parent", last, seen)
        kill_after(patch, JointRequestStore, "save", last, seen)
        with pytest.raises(Killed):
            world.ask()
    assert tuple(seen) == STEPS[: last + 1]
    check_done(world, world.ask())


def test_a_parent_that_is_in_the_ledger_but_not_stored_is_stored_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.visit()
    with monkeypatch.context() as patch:
        kill_after(patch, ErasureLedger, "certified", 2, [])
        with pytest.raises(Killed):
            world.ask()
    assert len(world.statements()) == 2
    done = world.ask()
    check_done(world, done)
    ledger = world.configs[0].layout.erasure / "ledger"
    lines = "".join(path.read_text() for path in ledger.glob("*.jsonl")).splitlines()
    records = [json.loads(line) for line in lines]
    mine = [item for item in records if item.get("request_id") == done.parent.id]
    assert [item["event"] for item in mine] == ["certified"]


def test_who_came_back_in_between_is_erased_again_and_both_are_listed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.visit()
    with monkeypatch.context() as patch:
        kill_after(patch, joint_erasures, "erase", 0, [])
        with pytest.raises(Killed):
            world.ask()
    world.visit()
    done = world.ask()
    assert [child.deployment for child in done.children] == ["a", "a", "b"]
    assert {child.outcome for child in done.children} == {ChildOutcome.ERASED}
    check_done(world, done, keys=3)


def test_a_deployment_that_fails_keeps_the_request_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.visit()
    erase = joint_erasures.erase

    def b_is_away(config: KvrunConfig, *given: Any, **named: Any) -> Any:
        if config.deployment.name == "b":
            raise ErasureError("the disk is full")
        return erase(config, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(joint_erasures, "erase", b_is_away)
        with pytest.raises(JointErasureOpenError, match=r"erased in a, .* b: the disk is full"):
            world.ask()
    (left,) = open_requests(world.configs[0])
    assert left.reference == ALICE.reference
    file = next(world.configs[0].layout.user_requests.glob("*.request"))
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"Private" not in file.read_bytes()
    check_done(world, world.ask())


def test_what_fails_may_be_certified_as_pending(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.visit()
    erase = joint_erasures.erase

    def b_is_away(config: KvrunConfig, *given: Any, **named: Any) -> Any:
        if config.deployment.name == "b":
            raise ErasureError("the disk is full")
        return erase(config, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(joint_erasures, "erase", b_is_away)
        done = world.ask(certify_pending=True)
    assert done.problems == {"b": "the disk is full"}
    assert {child.deployment: child.outcome.value for child in done.children} == {
        "a": "erased",
        "b": "pending",
    }
    assert world.living() == 1
    again = world.ask()
    assert again.parent.id != done.parent.id, "another request: the first one was answered"
    assert {child.deployment: child.outcome.value for child in again.children} == {
        "a": "nothing_held",
        "b": "erased",
    }


def test_a_request_that_was_never_confirmed_leaves_nothing(world: World) -> None:
    world.visit()
    with (
        pytest.raises(JointErasureOpenError, match="wants the token"),
        erasing_jointly(
            targets_of(world.configs, ALICE, ["", ""]), ALICE, unknown={}, certify_pending=True
        ),
    ):
        raise AssertionError("nothing is handed out")
    assert open_requests(world.configs[0]) == []
    assert world.living() == 2


def test_another_person_under_the_same_reference_is_another_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = JointAsked("default", "bob", ALICE.reference, "tests")
    world.visit()
    world.visit("bob")
    with monkeypatch.context() as patch:
        kill_after(patch, joint_erasures, "erase", 1, [])
        with pytest.raises(Killed):
            world.ask()
    done = world.ask(bob)
    assert len(open_requests(world.configs[0])) == 1, "the first one is still open"
    assert all("bob" in opening for opening in done.openings.values())
    again = world.ask()
    assert again.parent.id != done.parent.id
    assert world.living() == world.living("bob") == 0


def test_two_at_once_do_not_mix(world: World) -> None:
    world.visit()
    with (
        JointRequestStore(world.configs[0].layout.user_requests).alone(),
        pytest.raises(ErasureError, match="erases in several deployments"),
    ):
        world.ask()


def test_an_id_that_came_before_gets_the_same_answer_and_no_other_subject(world: World) -> None:
    config = world.configs[0]
    alice = ErasureScope(RequestKind.USER, "alice")
    request = ErasureRequest(alice, "tests", "twice", confirmed=True, id="ab" * 12, salt=b"s" * 32)
    with open_parts(config) as parts, open_erasures(config, parts, None, NoEngines()) as erasures:
        parts.instance.open_session("alice", "one")
        first = erasures.erase(request)
        parts.instance.open_session("alice", "one")
        again = erasures.erase(request)
        assert (first.earlier, again.earlier) == (False, True)
        assert (again.id, again.digest, again.opening) == (first.id, first.digest, first.opening)
        assert erasures.plan(alice).sessions == 1, "what came later is another erasure's"
        for scope, salt in (
            (ErasureScope(RequestKind.USER, "bob"), b"s" * 32),
            (alice, b"t" * 32),
        ):
            other = ErasureRequest(scope, "tests", confirmed=True, id="ab" * 12, salt=salt)
            with pytest.raises(ErasureError, match="something else"):
                erasures.erase(other)
    assert len(world.statements("twice")) == 1


_KILLED_BEFORE_THE_PARENT = """
import os, signal
from kvrun.launch import joint_erasures
joint_erasures.certify_parent = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
from kvrun.cli.main import main
main()
"""


@pytest.fixture
def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("KVRUN_")}


def test_a_command_that_was_killed_is_listed_and_goes_on(
    world: World, environment: dict[str, str]
) -> None:
    world.visit()
    folder = world.configs[0].layout.data_dir.parents[1]
    tokens = [plan_erasure(config, ALICE.scope, offline=True).token for config in world.configs]
    command = ["erase", "user", ALICE.subject, "--workspace", "default"]
    command += ["--ref", ALICE.reference, "--confirm", ".".join(tokens)]
    command += ["--legal-basis", ALICE.legal_basis]
    command += ["-c", str(folder / "a/kvrun.toml"), "-c", str(folder / "b/kvrun.toml")]

    def run(*start: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *start, *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    killed = run("-c", _KILLED_BEFORE_THE_PARENT)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [item.reference for item in open_requests(world.configs[0])] == ["DSAR-123"]
    done = run("-m", "kvrun")
    assert done.returncode == 0, done.stderr
    files = list(folder.glob("*.opening.json"))
    assert len(files) == 3
    statements = world.statements()
    assert len(statements) == 3
    for file in files:
        assert commit(file.read_bytes()) in statements[file.name.split(".")[0]].scope.commitments
