"""A policy repository's push webhook, and the button that does the same."""

from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.concurrency import run_in_threadpool

from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import ActorNow, DeploymentId, ServicesNow
from kvrun.deployments import policy_work
from kvrun.policy.push import SIGNATURE_HEADER, TOKEN_HEADER

router = APIRouter(tags=["insight"])


@router.post("/policy-pushes", status_code=204, summary="Say that there is a push (Git hosts)")
async def announce_policy_push(
    request: Request,
    services: ServicesNow,
    signature: Annotated[str, Header(alias=SIGNATURE_HEADER, max_length=200)] = "",
    token: Annotated[str, Header(alias=TOKEN_HEADER, max_length=4096)] = "",
) -> None:
    """For the webhook of a policy repository: signed with HMAC-SHA256 of the body
    (GitHub, Gitea, Forgejo), or with the secret as a token (GitLab). Nothing of the body is read:
    the deployments that share the secret look at their repository soon."""
    body = await request.body()
    sender = request.client.host if request.client is not None else ""
    await run_in_threadpool(
        services.policy_pushes.take, sender, body, signature=signature, token=token
    )


@router.post(
    "/deployments/{deployment_id}/policy/sync",
    status_code=204,
    summary="Look at a deployment's policy repository soon",
)
def sync_policy(services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId) -> None:
    """Within seconds, where the deployment runs; what came of it is in its policy's history."""
    found = services.find(actor, Permission.DEPLOY, deployment_id)
    policy_work.ask_for_look(services.deployments.config_of(found.id))
