"""``kvrun.AsyncClient``: the control plane from Python, with asyncio."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import httpx

from kvrun.client.address import address
from kvrun.client.calls import deployments as d
from kvrun.client.calls import evidence as e
from kvrun.client.calls import models as m
from kvrun.client.calls import people as p
from kvrun.client.link import AsyncLink
from kvrun.client.methods import AsyncGroup, async_answer, async_items
from kvrun.client.results.deployments import Deployment
from kvrun.client.results.evidence import ErasureProgress
from kvrun.client.retry import RetryPolicy
from kvrun.client.waiting import certified, erasure_done, in_state, reached


class AsyncWorkspaces(AsyncGroup):
    """Workspaces."""

    list = async_items(p.list_workspaces)
    get = async_answer(p.get_workspace)
    create = async_answer(p.create_workspace)
    delete = async_answer(p.delete_workspace)


class AsyncMembers(AsyncGroup):
    """People in a workspace."""

    list = async_items(p.list_members)
    add = async_answer(p.add_member)
    set_role = async_answer(p.set_member_role)
    remove = async_answer(p.remove_member)


class AsyncServiceAccounts(AsyncGroup):
    """Programs in a workspace."""

    list = async_items(p.list_service_accounts)
    create = async_answer(p.create_service_account)
    delete = async_answer(p.delete_service_account)


class AsyncApiKeys(AsyncGroup):
    """API keys."""

    list = async_items(p.list_api_keys)
    create = async_answer(p.create_api_key)
    rotate = async_answer(p.rotate_api_key)
    revoke = async_answer(p.revoke_api_key)


class AsyncLogins(AsyncGroup):
    """A person's logins on command lines; ``kvrun.client.login`` makes one."""

    list = async_items(p.list_logins)
    end = async_answer(p.end_login)


class AsyncApprovals(AsyncGroup):
    """Second persons' words."""

    list = async_items(p.list_approvals)
    ask = async_answer(p.ask_approval)
    approve = async_answer(p.approve)
    refuse = async_answer(p.refuse_approval)


class AsyncDeployments(AsyncGroup):
    """Deployments."""

    list = async_items(d.list_deployments)
    get = async_answer(d.get_deployment)
    create = async_answer(d.create_deployment)
    start = async_answer(d.start_deployment)
    stop = async_answer(d.stop_deployment)
    restart = async_answer(d.restart_deployment)
    rebuild = async_answer(d.rebuild_deployment)
    drain = async_answer(d.drain_deployment)
    delete = async_answer(d.delete_deployment)
    attach_token = async_answer(d.attach_token)
    attach = async_answer(d.attach_deployment)
    detach = async_answer(d.detach_deployment)
    overview = async_answer(d.get_overview)
    cache = async_answer(d.get_cache)
    policy = async_answer(d.get_policy)
    policy_revisions = async_answer(d.list_policy_revisions)
    compare_policies = async_answer(d.compare_policies)
    simulate_policy = async_answer(d.simulate_policy)
    policy_violations = async_answer(d.list_policy_violations)
    sync_policy = async_answer(d.sync_policy)
    process_log = async_answer(d.get_process_log)

    async def wait(
        self, deployment_id: str, state: str = "running", *, timeout_s: float = 600.0
    ) -> Deployment:
        """Wait until the deployment is in the state.

        Raises WaitedTooLongError, and WaitedInVainError where it failed or is deleted.
        """
        call = d.get_deployment(deployment_id)
        return await self._link.poll(call, in_state(state), timeout_s, reached(state))


class AsyncUsers(AsyncGroup):
    """End users, their sessions, and where their data is."""

    list = async_items(d.search_users)
    sessions = async_items(d.search_sessions)
    where_is = async_items(d.where_is)
    label = async_answer(d.put_tenants)
    label_list = async_answer(d.import_tenants)
    labels = async_answer(d.get_tenants)


class AsyncErasures(AsyncGroup):
    """Erasures: planned, confirmed, followed."""

    list = async_items(e.list_erasures)
    get = async_answer(e.get_erasure)
    plan = async_answer(e.plan_erasure)
    erase = async_answer(e.erase)
    plan_user = async_answer(e.plan_user_erasure)
    erase_user = async_answer(e.erase_user)
    plan_wide = async_answer(e.plan_wide_erasure)
    ask_wide_approval = async_answer(e.ask_wide_approval)
    erase_wide = async_answer(e.erase_wide)

    async def wait(
        self, deployment_id: str, erasure_id: str, *, timeout_s: float = 120.0
    ) -> ErasureProgress:
        """Wait until the erasure has its certificate. Raises WaitedTooLongError."""
        call = e.get_erasure(deployment_id, erasure_id)
        return await self._link.poll(call, certified, timeout_s, erasure_done(erasure_id))


class AsyncCertificates(AsyncGroup):
    """Erasure certificates, and the keys to check them with."""

    list = async_items(e.list_certificates)
    download = async_answer(e.get_certificate)
    page = async_answer(e.get_certificate_page)
    pdf = async_answer(e.get_certificate_pdf)
    trust_anchor = async_answer(e.get_trust_anchor)


class AsyncAudit(AsyncGroup):
    """Deployments' audit logs."""

    show = async_answer(e.get_audit)
    records = async_items(e.list_records)
    collect = async_answer(e.collect_now)
    segment = async_answer(e.get_segment)


class AsyncFineTunes(AsyncGroup):
    """Fine-tunes and their evaluations."""

    list = async_answer(m.list_finetunes)
    get = async_answer(m.get_finetune)
    statement = async_answer(m.get_finetune_statement)
    create = async_answer(m.create_finetune)
    resume = async_answer(m.resume_finetune)
    cancel = async_answer(m.cancel_finetune)
    delete = async_answer(m.delete_finetune)
    served = async_answer(m.get_served_evaluation)


class AsyncIsolation(AsyncGroup):
    """Isolation self-tests."""

    list = async_answer(m.list_isolation)
    run = async_answer(m.run_isolation)


class AsyncStorage(AsyncGroup):
    """A workspace's Storage."""

    browse = async_items(e.browse_storage)
    read = async_answer(e.read_object)


class AsyncEvidence(AsyncGroup):
    """Evidence for auditors."""

    controls = async_answer(e.get_controls)
    start = async_answer(e.start_evidence)
    start_deployment = async_answer(e.start_deployment_evidence)
    list = async_items(e.list_evidence)
    get = async_answer(e.get_evidence)
    download = async_answer(e.get_bundle)
    trust_anchor = async_answer(e.get_evidence_anchor)


class AsyncAlerts(AsyncGroup):
    """Alerts."""

    list = async_items(e.list_alerts)
    acknowledge = async_answer(e.acknowledge_alerts)


class AsyncClient(AsyncGroup):
    """The control plane's API for asyncio: methods are awaited, lists iterated with ``async for``.

    ``url`` and ``api_key`` come from ``KVRUN_API_URL`` and ``KVRUN_API_KEY`` where they are not
    given; without either the address is http://127.0.0.1:8090. ``timeout_s`` bounds how long an
    answer may take; erasing and collecting may take longer. ``verify`` is an ``ssl.SSLContext`` for
    an authority of your own.

    Raises ClientError, from every method: UnreachableError, BadAnswerError, NotAvailableError,
    WaitedTooLongError, WaitedInVainError and ApiError with its kinds.
    """

    me = async_answer(p.me)
    sign_out = async_answer(p.sign_out)

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  immutable
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.address = address(url, api_key)
        link = AsyncLink(
            self.address,
            timeout_s=timeout_s,
            retry=retry,
            verify=verify,
            transport=transport,
            sleep=sleep,
        )
        super().__init__(link)
        self.workspaces = AsyncWorkspaces(link)
        self.members = AsyncMembers(link)
        self.service_accounts = AsyncServiceAccounts(link)
        self.api_keys = AsyncApiKeys(link)
        self.logins = AsyncLogins(link)
        self.approvals = AsyncApprovals(link)
        self.deployments = AsyncDeployments(link)
        self.users = AsyncUsers(link)
        self.erasures = AsyncErasures(link)
        self.certificates = AsyncCertificates(link)
        self.finetunes = AsyncFineTunes(link)
        self.isolation = AsyncIsolation(link)
        self.audit = AsyncAudit(link)
        self.storage = AsyncStorage(link)
        self.evidence = AsyncEvidence(link)
        self.alerts = AsyncAlerts(link)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.address.url!r})"
