"""A running deployment of this machine as the self-test's target."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException

import msgspec

from kvrun.config import KvrunConfig
from kvrun.gateway.apikeys_file import passing_api_key
from kvrun.gateway.identity import DEFAULT_TENANT
from kvrun.gateway.routes import MODELS_PATH, READY_PATH
from kvrun.instance.admin import InstanceStatus
from kvrun.instance.canary_release import ReleasedPages
from kvrun.instance.handles import Reuse
from kvrun.isolation.doors import Doors, send
from kvrun.isolation.report import Check
from kvrun.isolation.target import Canary, Facts, Reply, SelfTestError, TierTokens
from kvrun.launch.admin import NotRunningError, ask_daemon
from kvrun.launch.client import complete
from kvrun.launch.erasing import erase, requester
from kvrun.launch.processes import engine_url, gateway_url
from kvrun.launch.readiness import http_answers

REFERENCE = "isolation self-test"
_KEY_ID = "isolation-self-test"
_KEY_LIFETIME_S = 1800
_READY_S = 30.0
_SEALED_S = 5.0
_POLL_S = 0.05
_ANSWER_TOKENS = 4


class RunningDeployment:
    """The deployment of one configuration, asked with one API key.

    ``restart`` restarts daemon and engine and returns at once or when they are back; None: nothing
    may be restarted.
    """

    def __init__(
        self, config: KvrunConfig, api_key: str, restart: Callable[[], None] | None = None
    ) -> None:
        self._config = config
        self._key = api_key
        self._restart = restart
        self._url = gateway_url(config)
        self._model = ""

    def facts(self) -> Facts:
        """See Target. Raises SelfTestError where tenants cannot be made up."""
        config, gateway = self._config, self._config.gateway
        kind = gateway.tenant_source.kind
        if kind != "header":
            raise SelfTestError(
                f"tenants of this deployment come from a {kind}, so no canary user can be made up",
                hint="Only deployments with tenants in a header can be tested.",
            )
        try:
            found = ask_daemon(config, "status")
        except NotRunningError as error:
            raise SelfTestError(error.message, hint=error.hint) from None
        status = msgspec.json.decode(found, type=InstanceStatus)
        if not status.engine:
            raise SelfTestError("no engine is connected to the daemon")
        self.wait_until_served(_READY_S)
        tiers = ["memory"] if config.instance.memory_bytes else []
        if config.instance.disk_bytes and not status.stateless:
            tiers.append("disk")
        if config.object_tier:
            tiers.append("object")
        return Facts(
            workspace=status.workspace,
            deployment=status.deployment,
            engine=status.engine,
            stateless=status.stateless,
            many_users=gateway.multi_tenant or self._has_seen_a_tenant(),
            tiers=() if status.stateless else tuple(tiers),
            can_restart=self._restart is not None,
            keeps_pages=config.engine.kind != "llama.cpp",  # its slots are erased after a request
        )

    def ask(self, canary: Canary, prompt: str) -> Reply:
        """See Target."""
        done = complete(
            self._url,
            self._key,
            self._model,
            prompt,
            tenant="",
            max_tokens=_ANSWER_TOKENS,
            headers=self.identity(canary),
        )
        return Reply(
            text=done.text,
            prompt_tokens=done.prompt_tokens,
            cached_tokens=done.cached_tokens,
            ttft_us=max(1, round(done.ttft_s * 1e6)),
            request_id=done.request_id,
        )

    def reused(self, reply: Reply) -> TierTokens:
        """See Target."""
        found = self._reuse(reply)
        return TierTokens(
            gpu=found.engine_tokens,
            memory=found.memory_tokens,
            disk=found.disk_tokens,
            object=found.object_tokens,
        )

    def seal(self, reply: Reply) -> None:
        """See Target: blocks are sealed behind the answer, so wait until no more come."""
        deadline, last, still = time.monotonic() + _SEALED_S, 0, 0
        while time.monotonic() < deadline and still < 3:
            now = self._reuse(reply).sealed_blocks
            still = still + 1 if now == last and now else 0
            last = now
            time.sleep(_POLL_S)
        ask_daemon(self._config, "flush")

    def release_pages(self, canary: Canary) -> bool:
        """See Target."""
        reply = ask_daemon(self._config, "release_pages", _whose(canary))
        return msgspec.json.decode(reply, type=ReleasedPages).confirmed

    def release_above(self, canary: Canary, tier: str) -> None:
        """See Target."""
        ask_daemon(self._config, "release_above", {**_whose(canary), "tier": tier})

    def restart(self) -> None:
        """See Target. Raises SelfTestError where it does not come back."""
        if self._restart is None:
            raise SelfTestError("this deployment may not be restarted here")
        self._restart()
        self.wait_until_served(self._config.engine.startup_timeout_s)

    def wait_until_served(self, timeout_s: float) -> None:
        """Wait until gateway and engine serve and the key is known. Raises SelfTestError."""
        deadline = time.monotonic() + timeout_s
        headers = {"Authorization": f"Bearer {self._key}"}
        said = "it does not answer"
        while time.monotonic() < deadline:
            with suppress(OSError, HTTPException):
                answer = send(self._url, "GET", MODELS_PATH, headers)
                said = f"it answers {answer.status}"
                if answer.status == 200 and http_answers(self._url, READY_PATH):
                    self._model = json.loads(answer.body)["data"][0]["id"]
                    return
            time.sleep(_POLL_S)
        raise SelfTestError(f"the gateway at {self._url} does not serve: {said}")

    def doors(self, canary: Canary, prompt: str) -> Sequence[Check]:
        """See Target."""
        return Doors(
            self._config, self._url, engine_url(self._config), self._key, self._model
        ).try_all(self.identity(canary), prompt)

    def erase(self, canaries: Sequence[Canary]) -> list[str]:
        """See Target: users where there are many, else their sessions."""
        scopes = [
            {"kind": "tenant", "tenant": user}
            for user in sorted({canary.user for canary in canaries if canary.user})
        ] or [
            {"kind": "session", "tenant": DEFAULT_TENANT, "session": canary.session}
            for canary in canaries
        ]
        asked = {"requester": requester(), "reference": REFERENCE, "confirmed": "yes"}
        return [erase(self._config, {**scope, **asked}, offline=True).id for scope in scopes]

    def identity(self, canary: Canary) -> dict[str, str]:
        """The headers that say whose request it is."""
        gateway = self._config.gateway
        named = {gateway.tenant_header: canary.user, gateway.session_header: canary.session}
        return {name: value for name, value in named.items() if value}

    def _reuse(self, reply: Reply) -> Reuse:
        asked = {"request_id": reply.request_id}
        return msgspec.json.decode(ask_daemon(self._config, "request", asked), type=Reuse)

    def _has_seen_a_tenant(self) -> bool:
        gateway = self._config.gateway
        folder = gateway.state_dir or self._config.layout.data_dir / "gateway"
        return (folder / "tenant-seen").exists()


def _whose(canary: Canary) -> dict[str, str]:
    return {"tenant": canary.user or DEFAULT_TENANT, "session": canary.session}


@contextmanager
def canary_key(config: KvrunConfig, given: str, now: Callable[[], float]) -> Iterator[str]:
    """The API key to ask with: the one that was given, else one that lasts as long as the block.

    Empty where the gateway asks for none. Raises SelfTestError where none can be made.
    """
    gateway = config.gateway
    if given or not gateway.require_auth:
        yield given
        return
    if gateway.api_keys_file is None:
        raise SelfTestError(
            "this gateway takes no API keys, so a self-test needs a token of a user",
            hint="Give one with --api-key-file.",
        )
    until = int(now()) + _KEY_LIFETIME_S
    key_id = f"{_KEY_ID}-{until}"
    with passing_api_key(gateway.api_keys_file, key_id, until=until) as key:
        yield key
