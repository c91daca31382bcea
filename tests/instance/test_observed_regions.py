"""Where an instance and its bucket are, asked of those who know, and what a contradiction does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import boto3
import pytest
from typer.testing import CliRunner

from kvrun.audit.record import AuditEvent, Event, Record, decode_record, encode_event
from kvrun.cli.main import app
from kvrun.config import parse_config
from kvrun.instance.observing import NotObservedError, Observer, bucket_region, instance_region
from kvrun.instance.residency import Residency
from kvrun.policy.bundle import ActivePolicy, Origin, PolicyFolder, SyncOutcome, TenantEntry
from kvrun.policy.document import TIER_NAMES, Tier
from kvrun.policy.errors import PolicyUnreadableError
from kvrun.policy.matching import InstanceFacts, Place
from kvrun.policy.named import active_revision
from kvrun.policy.observed import Observed, Standing, Standings
from kvrun.policy.recorded import simulated
from kvrun.policy.setup import asked_of, folder_of
from support.object_stores import ObjectStore

POLICY = """\
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata: {name: eu}
match: {classes: [eu]}
allow:
  tiers: [gpu, memory, disk, object]
  regions: ["eu-*"]
"""
TENANT = "e" * 32


class _Metadata(BaseHTTPRequestHandler):
    """The metadata services of three clouds, as far as they are asked for a region."""

    def do_PUT(self) -> None:
        asked = self.path == "/latest/api/token"
        self._answer("a-token" if asked and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
                     else None)  # fmt: skip

    def do_GET(self) -> None:
        path, headers = self.path, self.headers
        answer = None
        if path == "/latest/meta-data/placement/region":
            answer = "eu-west-1" if headers["X-aws-ec2-metadata-token"] == "a-token" else None
        elif path == "/computeMetadata/v1/instance/zone":
            answer = "projects/1234/zones/europe-west1-b" if headers["Metadata-Flavor"] else None
        elif path.startswith("/metadata/instance/compute/location?api-version="):
            answer = "westeurope" if headers["Metadata"] == "true" else None
        self._answer(answer)

    def _answer(self, text: str | None) -> None:
        self.send_response(200 if text is not None else 401)
        if self.server.speaks_google:  # type: ignore[attr-defined]
            self.send_header("Metadata-Flavor", "Google")
        body = (text or "no").encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def metadata_service(*, speaks_google: bool = True) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Metadata) as server:
        server.speaks_google = speaks_google  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_each_cloud_is_asked_as_it_wants_to_be_asked() -> None:
    with metadata_service() as port:
        found = {
            cloud: instance_region(cloud, "127.0.0.1", port) for cloud in ("aws", "gcp", "azure")
        }
    assert found == {"aws": "eu-west-1", "gcp": "europe-west1", "azure": "westeurope"}


def test_what_is_no_metadata_service_names_no_region() -> None:
    with (
        metadata_service(speaks_google=False) as port,
        pytest.raises(NotObservedError, match="no such metadata service"),
    ):
        instance_region("gcp", "127.0.0.1", port)
    with pytest.raises(NotObservedError, match="does not answer"):
        instance_region("aws", "127.0.0.1", port)


def test_an_s3_bucket_is_where_its_location_says(moto_store: ObjectStore) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=moto_store.endpoint,
        region_name="eu-central-1",
        aws_access_key_id="test",
        aws_secret_access_key="test-secret",
    )
    where = {"LocationConstraint": "eu-central-1"}
    client.create_bucket(Bucket="located", CreateBucketConfiguration=where)
    moto_store.bucket("located-by-default")
    assert bucket_region("s3://located/below", moto_store.options) == "eu-central-1"
    assert bucket_region("s3://located-by-default/below", moto_store.options) == "us-east-1"
    with pytest.raises(NotObservedError, match="NoSuchBucket"):
        bucket_region("s3://nowhere-at-all/below", moto_store.options)
    with pytest.raises(NotObservedError, match="only s3://"):
        bucket_region("gs://located/below", {})


class Scene:
    """A residency of an instance that is declared to be in Europe, with its bucket."""

    def __init__(self, folder: Path, files: PolicyFolder | None = None, asked: str = "") -> None:
        self.files = files or PolicyFolder(folder)
        self.events: list[str] = []
        self.swept = 0
        self.files.put_tenants([TenantEntry(tenant_ref=TENANT, tenant_class="eu")])
        origin = Origin(revision="a" * 40)
        self.files.activate(
            ActivePolicy(origin=origin, activated_at=1.0, files={"p/eu.yaml": POLICY})
        )
        self.files.note(SyncOutcome(at=1.0, outcome="activated"), confirmed=True)
        journal = SimpleNamespace(
            policy_revision="", policy_event=lambda event, revision, why: self.events.append(why)
        )
        self.residency = Residency(
            self.files,
            InstanceFacts(region="eu-west-1", places={Tier.OBJECT: Place("eu-central-1")}),
            cast(Any, journal),
            connected=True,
            asked=asked,
            now=lambda: 2.0,
            clock=lambda: 0.0,
        )
        self.residency.on_new_table = self.sweep

    def sweep(self) -> None:
        self.swept += 1

    def allowed(self) -> list[bool]:
        """By tier: gpu, memory, disk, object."""
        return [decision.allowed for decision in self.residency.placement(TENANT).row]


def test_a_bucket_elsewhere_is_in_no_region_until_it_is_seen_where_it_is_declared(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    assert scene.allowed() == [True, True, True, True]
    assert scene.residency.standings == Standings()
    scene.residency.observed(Observed("eu-west-1", "us-east-1"))
    assert scene.residency.standings == Standings(Standing.VERIFIED, Standing.MISMATCH)
    assert scene.allowed() == [True, True, True, False]
    assert scene.swept == 1
    assert scene.events[-1] == "active; instance in eu-west-1; storage in "
    scene.residency.observed(Observed())  # nobody answers: what was seen stays seen
    assert scene.allowed() == [True, True, True, False]
    assert scene.swept == 1
    scene.residency.observed(Observed("", "eu-central-1"))
    assert scene.allowed() == [True, True, True, True]
    state = scene.residency.state()
    assert (state.region, state.region_standing) == ("eu-west-1", "verified")
    assert (state.storage_region, state.storage_standing) == ("eu-central-1", "verified")


def test_an_instance_elsewhere_serves_nobody_whose_policy_names_a_region(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.residency.observed(Observed("us-east-1", ""))
    # What is in its bucket is still in Europe.
    assert scene.allowed() == [False, False, False, True]
    assert scene.residency.state().region_standing == "mismatch"
    assert not scene.residency.may_serve(TENANT, "s")


def placed_everywhere() -> list[Record]:
    """A log in which blocks of the tenant came into every tier."""
    of = partial(AuditEvent, tenant_ref=TENANT, session_ref="s", blocks=1, bytes=1)
    events = (
        of(event=Event.ALLOCATED, tier="gpu"),
        of(event=Event.SEALED, tier="memory"),
        of(event=Event.PERSISTED, tier="memory", tier_to="disk"),
        of(event=Event.PERSISTED, tier="memory", tier_to="object"),
    )
    about = {"log": "w/d/i", "epoch": 0, "prev": "0" * 64, "ts": "2026-01-31T12:00:00.000000Z"}
    return [
        decode_record(encode_event(event, seq=seq, **about))  # type: ignore[arg-type]
        for seq, event in enumerate(events)
    ]


def test_a_mismatch_lasts_over_a_restart_and_is_asked_anew_of_another(tmp_path: Path) -> None:
    Scene(tmp_path, asked="aws s3://one").residency.observed(Observed("", "us-east-1"))
    again = Scene(tmp_path, asked="aws s3://one")
    assert again.allowed() == [True, True, True, False]
    assert again.residency.standings.storage is Standing.MISMATCH
    assert Scene(tmp_path, asked="aws s3://two").allowed() == [True, True, True, True]
    PolicyFolder(tmp_path).seen_file.write_text("{")
    assert Scene(tmp_path, asked="aws s3://one").allowed() == [True, True, True, True]


def test_simulate_compare_and_explain_rest_on_what_enforcement_rests_on(tmp_path: Path) -> None:
    file = tmp_path / "kvrun.toml"
    file.write_text(
        f'[instance]\ndata_dir = "{tmp_path}"\n[residency]\nrepository = "{tmp_path}/none"\n'
        'region = "eu-west-1"\nstorage_region = "eu-central-1"\ninstance_metadata = "aws"\n'
    )
    config = parse_config(file.read_text(), {}, source=file)
    scene = Scene(tmp_path, folder_of(config), asked_of(config))
    active = active_revision(config).revision
    nobody = tmp_path / "nobody.yaml"
    nobody.write_text(POLICY.replace("eu", "nobody"))

    def command(*arguments: str) -> Any:
        shown = CliRunner().invoke(app, ["policy", *arguments, "--json", "--config", str(file)])
        assert shown.exit_code == 0, shown.output
        return json.loads(shown.stdout)

    def said() -> tuple[set[str], set[str], set[str]]:
        """Tiers that are refused: simulated, compared with a policy for nobody, explained."""
        flips = command("diff", str(nobody), "active")["decisions"]
        answers = command("explain", "--tenant", TENANT)["tiers"]
        return (
            {group.tier for group in simulated(config, active, placed_everywhere(), 0.0).changes},
            {*TIER_NAMES} - {flip["tier"] for flip in flips if flip["after"]["allowed"]},
            {name for name, answer in answers.items() if not answer["decision"]["allowed"]},
        )

    for seen in (Observed("eu-west-1", "eu-central-1"), Observed("", "us-east-1"),
                 Observed("us-east-1", ""), Observed("eu-west-1", "eu-central-1")):  # fmt: skip
        scene.residency.observed(seen)
        refused = {
            name for name, allowed in zip(TIER_NAMES, scene.allowed(), strict=True) if not allowed
        }
        placed_nowhere = {*TIER_NAMES} if "gpu" in refused else refused  # who is not served
        assert said() == (placed_nowhere, refused, refused)
    assert refused == set()


def test_looks_are_minutes_apart_and_one_that_fails_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Observed] = []
    now, answers = [0.0], iter(["eu-west-1", "", "", "eu-west-2"])

    def ask() -> str:
        answer = next(answers)
        if not answer:
            raise NotObservedError("no answer")
        return answer

    told = cast(Any, SimpleNamespace(observed=seen.append))
    observer = Observer(told, instance=ask, storage=None, clock=lambda: now[0])
    for _ in range(4):
        observer.run()
        observer.run()
        now[0] += 301.0
    assert [look.instance for look in seen] == ["eu-west-1", "", "", "eu-west-2"]
    assert caplog.text.count("stays unverified: no answer") == 1
    Observer(told, instance=None, storage=None).run()
    assert len(seen) == 4


def test_a_file_that_could_not_be_read_is_read_again(tmp_path: Path) -> None:
    class Flaky(PolicyFolder):
        failures = 2

        def active(self) -> ActivePolicy | None:
            if Flaky.failures:
                Flaky.failures -= 1
                raise PolicyUnreadableError("an input/output error")
            return super().active()

    scene = Scene(tmp_path, Flaky(tmp_path))
    assert scene.residency.state().standing == "no valid policy: GPU memory only"
    assert scene.residency.state().error == "an input/output error"
    assert not scene.residency.refresh()
    assert scene.residency.refresh()
    assert scene.residency.state().standing == "active"
    assert scene.residency.state().error == ""
