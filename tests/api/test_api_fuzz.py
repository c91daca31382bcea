"""Requests made from the OpenAPI document, whole and broken ones: no fault of ours, no surprise.

The requests are the same in every run. Most of those with ids in their path get ids that exist.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from api_rig import World, open_world
from api_server import serving
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from kvrun.accounts import Role, Scope
from kvrun.api.app import openapi_text
from kvrun.launch import erasing

DOCUMENT: dict[str, Any] = json.loads(openapi_text())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {
    found.ok().definition.raw["operationId"]: found.ok() for found in SCHEMA.get_all_operations()
}
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 4
ENDS_THE_WORLD = {"delete_workspace"}
"""With an id that exists it would leave the others nothing to work on."""


@dataclass
class Target:
    """A control plane that answers, ids of things in it, and its owner's API key."""

    url: str
    session: requests.Session
    ids: dict[str, str]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch, open_world(folder) as world:
        # The test's process is to stay one that a debugger may look at.
        patch.setattr(erasing, "harden_process", lambda: None)
        ids = _ids(world)
        key = world.key(world.owner_actor, [Scope.ADMIN])
        with serving(world) as url, requests.Session() as session:
            session.headers.update(key.headers)
            yield Target(url, session, ids)
    shutil.rmtree(folder, ignore_errors=True)


def _ids(world: World) -> dict[str, str]:
    acme = world.workspace("acme")
    owner = world.owner_actor
    accounts, deployment = world.services.accounts, world.deployment()
    world.visit(deployment, "alice")
    return {
        "workspace_id": acme,
        "deployment_id": deployment.id,
        "user_id": world.person("ada@example.com", Role.PRIVACY).user_id,
        "account_id": accounts.create_service_account(owner, acme, "robot", Role.ADMIN).id,
        "key_id": accounts.create_key(owner, acme, "key", [Scope.INFER])[0].id,
        "approval_id": accounts.ask_approval(owner, acme, "erase_deployment", "a-plan").id,
    }


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_request_that_can_be_made_is_a_fault_of_ours(target: Target, name: str) -> None:
    operation = OPERATIONS[name]
    modes = [operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(modes), known=st.sampled_from((True, True, False)))
    def ask(case: schemathesis.Case, known: bool) -> None:
        if known and name not in ENDS_THE_WORLD:
            for parameter in set(case.path_parameters) & set(target.ids):
                case.path_parameters[parameter] = target.ids[parameter]
        answer = case.call(base_url=target.url, session=target.session, allow_redirects=False)
        if answer.status_code >= 500:
            # What a deployment that is away or an extra that is missing are answered with.
            assert answer.json()["code"] in ("unreachable", "pdf_not_installed"), answer.text
            return
        case.validate_response(answer, checks=CHECKS)

    ask()
