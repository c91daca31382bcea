"""Where the instance and its bucket are, by those who know: the cloud's metadata service and the
object store. Asked only where the configuration says so, in the background, and not for long."""

from __future__ import annotations

import http.client
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import urlsplit

from kvrun.errors import KvrunError
from kvrun.policy.observed import Observed
from kvrun.storage.s3 import REACHING, s3_client

METADATA_ADDRESS = "169.254.169.254"
_TIMEOUT_S = 2.0
_EVERY_S = 300.0
_MAX_ANSWER_BYTES = 4096
_REGION = re.compile(r"[a-z][a-z0-9-]{1,62}")
_ZONE = re.compile(r"projects/[^/]+/zones/([a-z0-9-]+)-[a-z]")
_LASTS_S = "60"
_log = logging.getLogger(__name__)


class NotObservedError(KvrunError):
    """Nobody could say where something is; it stays unverified."""


class Observing(Protocol):
    """Who is told what was seen."""

    def observed(self, seen: Observed) -> None:
        """Regions that were seen; empty where nobody could be asked."""


class Observer:
    """Looks where the instance and its bucket are, again every few minutes.

    ``instance`` and ``storage`` answer a region or raise NotObservedError; None: never asked.
    ``clock`` is monotonic, in seconds.
    """

    def __init__(
        self,
        told: Observing,
        *,
        instance: Callable[[], str] | None,
        storage: Callable[[], str] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._told = told
        self._instance = instance
        self._storage = storage
        self._clock = clock
        self._due = float("-inf")
        self._said: dict[str, str] = {}

    def run(self) -> None:
        """Look, where that is due. May take some seconds."""
        if (self._instance is None and self._storage is None) or self._clock() < self._due:
            return
        self._due = self._clock() + _EVERY_S
        self._told.observed(
            Observed(
                self._ask("instance", self._instance),
                self._ask("bucket", self._storage),
            )
        )

    def _ask(self, what: str, ask: Callable[[], str] | None) -> str:
        if ask is None:
            return ""
        try:
            region, said = ask(), ""
        except NotObservedError as error:
            region, said = "", error.message
        if said != self._said.get(what, ""):
            _log.warning("where the %s is stays unverified: %s", what, said)
        self._said[what] = said
        return region


def instance_region(cloud: str, address: str = METADATA_ADDRESS, port: int = 80) -> str:
    """The region that the metadata service of ``aws``, ``gcp`` or ``azure`` names.

    Raises NotObservedError. No proxy is used: the service is on the machine's own link.
    """
    ask = _CLOUDS[cloud]
    try:
        return _checked(ask(_Metadata(address, port)), f"the metadata service of {cloud}")
    except (OSError, http.client.HTTPException) as error:
        raise NotObservedError(
            f"the metadata service of {cloud} does not answer: {error or type(error).__name__}"
        ) from None


def bucket_region(url: str, options: Mapping[str, str]) -> str:
    """The region of an S3 bucket, as GetBucketLocation names it. Raises NotObservedError."""
    parts = urlsplit(url)
    if parts.scheme not in ("s3", "s3a"):
        raise NotObservedError(f"only s3:// can be asked for its region, not {parts.scheme}://")
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise NotObservedError(
            "boto3 is not installed", hint="pip install 'kvrun[aws]' installs it."
        ) from None
    try:
        # AWS itself answers for buckets of all regions where it is asked in its first one.
        client = s3_client(
            parts.netloc, options, timeout_s=_TIMEOUT_S, attempts=1, aws_region="us-east-1"
        )
        answer = client.get_bucket_location(Bucket=parts.netloc)
    except (BotoCoreError, ClientError, ValueError) as error:
        text = " ".join(str(error).split())[:300]
        raise NotObservedError(
            f"Storage does not say where the bucket is: {text}",
            hint=f"Allow s3:GetBucketLocation. {REACHING}",
        ) from None
    # The two oldest regions have names of their own here.
    named = answer.get("LocationConstraint") or "us-east-1"
    return _checked("eu-west-1" if named == "EU" else named, "Storage")


class _Metadata:
    """Requests to a metadata service, each on a connection of its own."""

    def __init__(self, address: str, port: int) -> None:
        self._address = address
        self._port = port

    def ask(
        self, path: str, headers: Mapping[str, str], *, method: str = "GET", answers: str = ""
    ) -> str:
        """The text of an answer. ``answers`` is a header that the right service sends."""
        connection = http.client.HTTPConnection(self._address, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            body = response.read(_MAX_ANSWER_BYTES + 1)
            if response.status != 200 or len(body) > _MAX_ANSWER_BYTES:
                raise NotObservedError(
                    f"the metadata service answered with status {response.status}"
                )
            if answers and answers not in response.headers:
                raise NotObservedError("what answers is no such metadata service")
            return body.decode("ascii", "replace").strip()
        finally:
            connection.close()


def _aws(service: _Metadata) -> str:
    token = service.ask(
        "/latest/api/token",
        {"X-aws-ec2-metadata-token-ttl-seconds": _LASTS_S},
        method="PUT",
    )
    return service.ask("/latest/meta-data/placement/region", {"X-aws-ec2-metadata-token": token})


def _gcp(service: _Metadata) -> str:
    flavor = "Metadata-Flavor"
    zone = service.ask("/computeMetadata/v1/instance/zone", {flavor: "Google"}, answers=flavor)
    found = _ZONE.fullmatch(zone)
    return found[1] if found is not None else zone


def _azure(service: _Metadata) -> str:
    path = "/metadata/instance/compute/location?api-version=2021-02-01&format=text"
    return service.ask(path, {"Metadata": "true"})


_CLOUDS: Mapping[str, Callable[[_Metadata], str]] = {"aws": _aws, "gcp": _gcp, "azure": _azure}


def _checked(region: str, who: str) -> str:
    if not _REGION.fullmatch(region):
        raise NotObservedError(f"{who} names no region: {region[:80]!r}")
    return region
