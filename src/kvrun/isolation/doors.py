"""What no client may do, tried on a running deployment: forged identity, salts and claims, and the
engine's own ways in."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.claims.claim import CLAIM_PARAMETER, Claim, ClaimSigner
from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.gateway.routes import METRICS_PATH
from kvrun.instance.client import AdminClient
from kvrun.isolation.report import Check, Outcome
from kvrun.launch.client import complete
from kvrun.launch.readiness import connect

COMPLETIONS = "/v1/completions"
CLOSED_PATHS = (
    "/invocations",
    "/tokenize",
    "/pooling",
    "/score",
    "/v1/load_lora_adapter",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/sleep",
)
"""Ways in that an engine has besides /v1; the gateway serves none of them."""
DEVELOPMENT_PATHS = ("/reset_prefix_cache", "/collective_rpc", "/sleep")
"""What the engine itself must not serve, also to who reaches its socket."""
_TIMEOUT_S = 60.0
_MAX_ANSWER = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of an HTTP answer."""

    status: int
    body: bytes


def send(
    url: str, method: str, path: str, headers: Mapping[str, str], body: str | None = None
) -> Answer:
    """One request on this machine. Raises OSError or HTTPException."""
    connection = connect(url, _TIMEOUT_S)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(_MAX_ANSWER))
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Doors:
    """A deployment's gateway and engine, an API key for the former, and the model's name."""

    config: KvrunConfig
    gateway: str
    engine: str
    key: str
    model: str

    def try_all(self, identity: Mapping[str, str], prompt: str) -> list[Check]:
        """Try everything; ``identity`` names a canary that sent ``prompt`` before."""
        return [
            self._check("forged header", self._forged_headers(identity)),
            self._check("client-set salt", self._salts(identity)),
            self._check("no credential", self._no_credential(identity)),
            self._check("paths beside the API", self._closed_paths()),
            self._check("the engine's development routes", self._development()),
            self._reuse("the engine, without a claim", prompt, {}),
            self._reuse("the engine, with a forged claim", prompt, self._forged(identity)),
            self._private(),
            self._daemon(),
        ]

    def _check(self, name: str, tried: Iterator[tuple[str, int, tuple[int, ...]]]) -> Check:
        """Each attempt as (what, status, what it must be); one that got through fails it."""
        count, through = 0, []
        for what, status, refusals in tried:
            count += 1
            if status not in refusals:
                through.append(f"{what}: {status}")
        if not count:
            return Check(name=name, outcome=Outcome.SKIPPED, detail="does not apply here")
        if through:
            return Check(name=name, outcome=Outcome.FAIL, detail="; ".join(through))
        return Check(name=name, outcome=Outcome.PASS, detail=f"{count} attempts were refused")

    def _forged_headers(self, identity: Mapping[str, str]) -> Iterator[tuple[str, int, tuple[int]]]:
        for name in ("X-KV-Claim", "X-KV-Salt", "X-KV-Deployment", "X_KV_Tenant", "X-Session-ID"):
            yield name, self._ask({**identity, name: "x"}, {}), (400,)
        for name in ("", "a b", "x" * 129):
            shown = f"{self.config.gateway.session_header}: {name[:8]!r}"
            forged = {**identity, self.config.gateway.session_header: name}
            yield shown, self._ask(forged, {}), (400,)

    def _salts(self, identity: Mapping[str, str]) -> Iterator[tuple[str, int, tuple[int]]]:
        for fields in (
            {"cache_salt": "A" * 43},
            {"kv_transfer_params": {CLAIM_PARAMETER: "x"}},
            {"vllm_xargs": {"cache_salt": "A" * 43}},
            {"vllm_xargs": {"kv_transfer_params": "x"}},
            {"request_id": "x"},
            {"session_id": "x"},
        ):
            yield str(next(iter(fields))), self._ask(identity, fields), (400,)

    def _no_credential(self, identity: Mapping[str, str]) -> Iterator[tuple[str, int, tuple[int]]]:
        if not self.config.gateway.require_auth:
            return
        bare = replace(self, key="")
        yield "no key", bare._ask(identity, {}), (401,)
        wrong = replace(self, key="kvk_" + "A" * 43)
        yield "an unknown key", wrong._ask(identity, {}), (401,)
        yield METRICS_PATH, send(self.gateway, "GET", METRICS_PATH, {}).status, (401,)

    def _closed_paths(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        for path in CLOSED_PATHS:
            yield path, send(self.gateway, "POST", path, self._headers({}), "{}").status, (404, 405)

    def _development(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        for path in DEVELOPMENT_PATHS:
            yield path, send(self.engine, "POST", path, self._headers({}), "{}").status, (404, 405)

    def _reuse(self, name: str, prompt: str, fields: Mapping[str, object]) -> Check:
        """Straight to the engine, twice: neither time may it reuse what the canary left."""
        reused = 0
        try:
            for _ in range(2):
                done = complete(
                    self.engine, "", self.model, prompt, tenant="", max_tokens=1, fields=fields
                )
                reused += done.cached_tokens
        except KvrunError as error:
            detail = f"the engine refused: {error.message[:200]}"
            return Check(name=name, outcome=Outcome.PASS, detail=_printable(detail))
        outcome = Outcome.FAIL if reused else Outcome.PASS
        return Check(name=name, outcome=outcome, detail=f"it reused {reused} tokens")

    def _forged(self, identity: Mapping[str, str]) -> dict[str, object]:
        """A claim of the canary that is right in all but who signed it, and a salt to go with."""
        deployment, gateway = self.config.deployment, self.config.gateway
        salt, now = secrets.token_urlsafe(32), int(time.time())
        claim = Claim(
            workspace=deployment.workspace,
            deployment=deployment.name,
            tenant=identity.get(gateway.tenant_header, "default"),
            session=identity.get(gateway.session_header, "default"),
            generation=1,
            salt=salt,
            request_id=secrets.token_hex(8),
            nonce=secrets.token_urlsafe(16),
            uses=2,
            issued_at=now,
            expires_at=now + 60,
        )
        token = ClaimSigner(Ed25519PrivateKey.generate()).sign(claim)
        return {"cache_salt": salt, "kv_transfer_params": {CLAIM_PARAMETER: token}}

    def _private(self) -> Check:
        name = "the engine's address"
        if self.config.engine.transport != "unix":
            return Check(
                name=name,
                outcome=Outcome.INCONCLUSIVE,
                detail="engine.transport is tcp: every process of this machine reaches it, and gets"
                " answers without a cache",
            )
        folder = self.config.layout.run
        found = folder.stat()
        private = found.st_mode & 0o077 == 0 and found.st_uid == os.geteuid()
        return Check(
            name=name,
            outcome=Outcome.PASS if private else Outcome.FAIL,
            detail=f"the folder of its socket has mode {found.st_mode & 0o777:04o}",
        )

    def _daemon(self) -> Check:
        name = "the daemon, without its token"
        try:
            with AdminClient(Path(self.config.instance_socket), "0" * 64) as client:
                client.call("status", {})
        except KvrunError as error:
            detail = _printable(error.message)[:200]
            return Check(name=name, outcome=Outcome.PASS, detail=detail)
        return Check(name=name, outcome=Outcome.FAIL, detail="it answered")

    def _ask(self, headers: Mapping[str, str], fields: Mapping[str, object]) -> int:
        body = {"model": self.model, "prompt": "x", "max_tokens": 1, **fields}
        sent = self._headers(headers)
        try:
            return send(self.gateway, "POST", COMPLETIONS, sent, json.dumps(body)).status
        except HTTPException:
            return 400  # it hung up on what is no HTTP

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        credential = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {"Content-Type": "application/json", **credential, **headers}


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
