"""A deployment with a quarter behind it: logs, erasures, people, alerts; and its bundles."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

sys.path += [str(Path(__file__).parents[1] / name) for name in ("erasure", "policy")]

from certificate_world import statement
from policies import EU, US, Repository

from kvrun.accounts.actor import ActorKind
from kvrun.accounts.events import AccessEvent, AccessEventKind
from kvrun.api.access_log import AccessLog
from kvrun.audit import AuditEvent, AuditLimits, AuditLog, Event
from kvrun.audit.record import Outcome, format_time
from kvrun.config import KvrunConfig, load_config
from kvrun.control.alerts import Alert, AlertKind
from kvrun.control.plane import ControlPlane
from kvrun.control.rounds import run_round
from kvrun.deployments.attaching import spec_of
from kvrun.erasure.certificate import ErasureStatement, StepEntry
from kvrun.erasure.document import make_certificate, sign_statement
from kvrun.erasure.ledger import ErasureLedger
from kvrun.erasure.trust import TrustAnchor, parse_anchor
from kvrun.evidence.anchor import scope_anchor
from kvrun.evidence.export import Request, export_bundle
from kvrun.evidence.period import parse_period
from kvrun.evidence.scope import Scope, Site
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
from kvrun.instance.ring_signer import RingSigner
from kvrun.instance.settings_record import SettingsEntry, settings_text
from kvrun.isolation.report import (
    Check,
    IsolationPredicate,
    object_name,
    sign_result,
)
from kvrun.isolation.report import Outcome as CheckOutcome
from kvrun.keys.signing import KeyPurpose, SigningRing
from kvrun.policy.setup import facts_of, folder_of
from kvrun.policy.sync import PolicySync, SyncSettings

LIMITS = AuditLimits(
    group_seconds=60,
    checkpoint_seconds=3600,
    heartbeat_seconds=1e9,
    segment_bytes=4000,
    segment_seconds=1e9,
)
JANUARY = parse_period("2026-01-01", "2026-02-01")
DAY_S = 86_400
LOG_ID = "acme/instances/one"
WORKSPACE_ID = "ws-1"


def moment(text: str) -> float:
    """Seconds of a day such as ``2026-01-05``."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@dataclass
class Clock:
    """Stands still until a test sets it."""

    time: float = moment("2025-12-31")

    def __call__(self) -> float:
        return self.time


@dataclass
class World:
    """One deployment and the control plane around it, in ``root``."""

    root: Path
    clock: Clock = field(default_factory=Clock)
    number: int = 0
    revisions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "d").mkdir(mode=0o700, parents=True)
        self.file = self.root / "kvrun.toml"
        self.file.write_text(
            '[deployment]\nworkspace = "acme"\nname = "chat"\n'
            f'[instance]\ndata_dir = "{self.root}/d"\nmemory_bytes = "64MiB"\n'
        )
        self.layout = self.config.layout
        self.ring = SigningRing(self.layout.signing_keys, now=self.clock)
        self.ring.load_or_create(KeyPurpose.CERTIFICATE)
        self.ring.load_or_create(KeyPurpose.EVIDENCE)
        self.access = AccessLog(self.home, self.clock)

    @property
    def home(self) -> Path:
        return self.root / "d" / "control-plane"

    @property
    def config(self) -> KvrunConfig:
        return load_config(self.file, {})

    @property
    def plane(self) -> ControlPlane:
        return ControlPlane(self.config, self.clock)

    @property
    def scope(self) -> Scope:
        spec = spec_of(self.config, "chat")
        site = Site("d-1", spec, "local", moment("2025-12-30"), None, self.config)
        return Scope("acme", WORKSPACE_ID, "", (site,), self.home, self.layout)

    @property
    def anchor(self) -> TrustAnchor:
        return parse_anchor(scope_anchor(self.scope))

    @contextlib.contextmanager
    def instance(self) -> Iterator[AuditLog]:
        signer = RingSigner(LOG_ID, self.ring)
        log = AuditLog.open(
            self.layout.audit, log_id=LOG_ID, signer=signer, now=self.clock, limits=LIMITS
        )
        with contextlib.closing(log):
            yield log

    def day(self, text: str, *events: AuditEvent, sealed: int = 6) -> None:
        """A day of use: some sealings and what else happened."""
        self.clock.time = moment(text) + 3600
        with self.instance() as log:
            for _ in range(sealed):
                self.clock.time += 60
                self.number += 1
                log.append_durable(
                    AuditEvent(
                        event=Event.SEALED,
                        request_id=f"req-{self.number}",
                        workspace="acme",
                        deployment="chat",
                        tenant_ref="aa" * 16,
                        session_ref="bb" * 16,
                        tier="memory",
                        blocks=3,
                        bytes=300,
                        policy_revision="builtin-1",
                    )
                )
            for event in events:
                log.append_durable(event)

    def collect(self) -> None:
        run_round(self.plane, reason="scheduled")

    def follow(self, name: str, text: str) -> AuditEvent:
        """A commit of the policy repository that is put in force, and the record that says so."""
        folder = self.root / "policies"
        repository = Repository(folder, make=not folder.exists())
        self.revisions.append(repository.commit({name: text}))
        done = PolicySync(
            folder_of(self.config),
            SyncSettings(str(folder)),
            lambda: facts_of(self.config),
            now=self.clock,
            clock=lambda: 0.0,
        ).run()
        assert (done.outcome, done.revision) == ("activated", self.revisions[-1]), done.problems
        return AuditEvent(
            event=Event.POLICY_ACTIVATED, policy_revision=self.revisions[-1], reason="active"
        )

    def erase(self, name: str, requested: str, issued: str, request: str = "") -> bytes:
        """A certificate that was asked for and issued at these days; of another ``request``, it is
        an addendum."""
        asked, at = moment(requested) + 60, moment(issued) + 120
        what: ErasureStatement = statement()
        what = msgspec.structs.replace(
            what,
            id=name,
            issued_at=format_time(at),
            complete_after=format_time(at),
            request=msgspec.structs.replace(
                what.request, id=request or name, requested_at=format_time(asked), requester="dpo"
            ),
            steps=[StepEntry(name="destroyed", at=format_time(at - 1))],
            log="acme/erasures",
        )
        self.clock.time = at
        signer = RingSigner(what.log, self.ring)
        ledger = ErasureLedger.open(
            self.layout.erasure / "ledger", log_id=what.log, signer=signer, now=self.clock
        )
        with contextlib.closing(ledger):
            signed = sign_statement(what, self.ring.load_or_create(KeyPurpose.CERTIFICATE))
            logged = ledger.certified(name, "acme", "chat", signed.digest)
        data = make_certificate(signed, logged)
        self.plane.archive.put(name, data)
        return data

    def person(self, day: str, kind: AccessEventKind, workspace: str, detail: str) -> None:
        self.clock.time = moment(day) + 7200
        self.access.note(
            AccessEvent(
                kind=kind,
                at=int(self.clock.time),
                actor_id="u-1",
                actor_kind=ActorKind.USER,
                workspace_id=workspace,
                detail=detail,
            )
        )

    def self_test(self, day: str) -> None:
        """A signed result of an isolation self-test, in Storage."""
        result = IsolationPredicate(
            issued_at=format_time(moment(day) + 9),
            started_at=format_time(moment(day)),
            workspace="acme",
            deployment="chat",
            engine="vllm",
            version="0.1.0",
            prompt_tokens=100,
            restarted=False,
            outcome=CheckOutcome.PASS,
            checks=[Check(name="other_user", outcome=CheckOutcome.PASS, detail="nothing reused")],
            timing=None,
            erased=[],
        )
        data = sign_result(result, b"", self.ring.load_or_create(KeyPurpose.EVIDENCE))
        self.plane.storage().create(f"acme/deployments/chat/{object_name(result)}", data)

    def evaluation(self, name: str, day: str) -> None:
        """A fine-tune with its evaluation on record."""
        store = FineTunes(self.layout.finetunes)
        folder = store.folder(name)
        folder.mkdir(mode=0o700, parents=True)
        (folder / "model.safetensors").write_bytes(b"weights of " + name.encode())
        score = Score(loss=1.5, exact_matches=0, examples=1, answer_tokens=3)
        what = Evaluation(
            id=f"ft-{name}",
            name=name,
            evaluated_at=format_time(moment(day)),
            seed=1,
            base=BaseModel(model="tiny", digest="ab" * 32),
            adapter_sha256="cd" * 32,
            origin="imported",
            training=None,
            plan=None,
            evaluation=EvaluationData(
                sha256="ef" * 32, size_bytes=9, examples=1, split="given", overlap=None
            ),
            base_score=score,
            tuned_score=score,
            machine=Machine(system="Linux", processor="x", device="cpu", threads=1, versions={}),
        )
        (folder / EVALUATION_NAME).write_bytes(encode_evaluation(what))
        key = self.ring.load_or_create(KeyPurpose.EVIDENCE)
        issued = format_time(moment(day) + 1)
        (folder / STATEMENT_NAME).write_bytes(
            sign_folder(folder, what, key, issued_at=issued, version="0.1.0")
        )
        store.keep(folder, what)

    def alert(self, day: str, reason: str = "", settled: str = "") -> None:
        book = self.plane.alerts
        alert_id = book.prepare(LOG_ID, AlertKind.OMISSION, moment(day))
        book.save(
            Alert(
                id=alert_id,
                kind=AlertKind.OMISSION,
                log=LOG_ID,
                source="one",
                seq=3,
                detail="one request is missing",
                raised_at=moment(day) + 10,
                acknowledged_at=moment(settled) + 20 if settled else None,
                acknowledged_because=reason,
            )
        )

    def export(self, name: str, request: Request | None = None) -> Path:
        path = self.root / name
        return export_bundle(
            self.scope, request or Request(JANUARY, sample=5), path, now=self.clock
        )


def set_to(**settings: str) -> AuditEvent:
    """What a daemon records that starts with these settings."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    everything = {"encryption": "on", "isolation": "on", "stateless": "no", **named}
    return AuditEvent(event=Event.DEPLOYMENT_STARTED, reason=settings_text(everything))


def quarter(root: Path) -> World:
    """December to March: what is of January, what is around it, and what is not collected yet."""
    world = World(root)
    key = AuditEvent(event=Event.KEY_CREATED, key_id="11" * 16, deployment="chat")
    gone = AuditEvent(event=Event.KEY_DESTROYED, key_id="11" * 16, reason="erased")
    epoch = AuditEvent(event=Event.KEY_ROTATED, key_id="22" * 16, reason="epoch 3")
    broken = AuditEvent(
        event=Event.INTEGRITY_FAILURE, outcome=Outcome.FAILED, reason="bad_tag", tier="disk"
    )
    whois = AuditEvent(event=Event.WHOIS, tenant_ref="aa" * 16, reason="ticket 7 by uid 0")
    world.day("2025-12-31", epoch, set_to(strict="no"))
    world.layout.settings_record.write_bytes(
        msgspec.json.encode(SettingsEntry(moment("2025-12-31"), set_to(strict="no").reason)) + b"\n"
    )
    world.person("2025-12-31", AccessEventKind.SIGNED_IN, WORKSPACE_ID, "")
    world.day("2026-01-01", key, world.follow("eu.yaml", EU))
    world.collect()
    world.person("2026-01-10", AccessEventKind.ROLE_CHANGED, WORKSPACE_ID, "developer -> admin")
    world.person("2026-01-11", AccessEventKind.ROLE_CHANGED, "ws-2", "of another workspace")
    world.erase("er-1", "2026-01-11", "2026-01-12")
    refused = [
        AuditEvent(
            event=Event.DENIED,
            outcome=outcome,
            tier="object",
            policy_revision=world.revisions[0],
            reason=f"residency: {said}",
        )
        for outcome, said in (
            (Outcome.DENIED, "region_not_allowed eu x3"),
            (Outcome.DENIED, "region_not_allowed eu"),
            (Outcome.OK, "no_policy_matches x2"),
            (Outcome.DENIED, "40 more placements have no record"),
        )
    ]
    world.day("2026-01-12", gone, epoch, whois, broken, set_to(strict="yes"), *refused)
    world.collect()
    world.self_test("2026-01-12")
    world.self_test("2026-02-12")
    world.evaluation("tuned", "2026-02-05")
    world.alert("2026-01-13", "counted by hand", "2026-01-14")
    world.alert("2026-01-30", "seen later", "2026-02-03")
    world.erase("er-2", "2026-01-31", "2026-02-02")
    world.day("2026-01-31")
    world.day("2026-02-10", key, set_to(strict="yes", stateless="yes"), world.follow("us.yaml", US))
    world.collect()
    world.day("2026-03-01")
    world.collect()
    return world
