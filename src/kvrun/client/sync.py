"""``kvrun.Client``: the control plane from Python."""

import ssl
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx

from kvrun.client.address import address
from kvrun.client.calls import deployments as d
from kvrun.client.calls import evidence as e
from kvrun.client.calls import models as m
from kvrun.client.calls import people as p
from kvrun.client.link import Link
from kvrun.client.methods import Group, answer, items
from kvrun.client.results.deployments import Deployment
from kvrun.client.results.evidence import ErasureProgress
from kvrun.client.retry import RetryPolicy
from kvrun.client.waiting import certified, erasure_done, in_state, reached


class Workspaces(Group):
    """Workspaces."""

    list = items(p.list_workspaces)
    get = answer(p.get_workspace)
    create = answer(p.create_workspace)
    delete = answer(p.delete_workspace)


class Members(Group):
    """People in a workspace."""

    list = items(p.list_members)
    add = answer(p.add_member)
    set_role = answer(p.set_member_role)
    remove = answer(p.remove_member)


class ServiceAccounts(Group):
    """Programs in a workspace."""

    list = items(p.list_service_accounts)
    create = answer(p.create_service_account)
    delete = answer(p.delete_service_account)


class ApiKeys(Group):
    """API keys."""

    list = items(p.list_api_keys)
    create = answer(p.create_api_key)
    rotate = answer(p.rotate_api_key)
    revoke = answer(p.revoke_api_key)


class Logins(Group):
    """A person's logins on command lines; ``kvrun.client.login`` makes one."""

    list = items(p.list_logins)
    end = answer(p.end_login)


class Approvals(Group):
    """Second persons' words."""

    list = items(p.list_approvals)
    ask = answer(p.ask_approval)
    approve = answer(p.approve)
    refuse = answer(p.refuse_approval)


class Deployments(Group):
    """Deployments."""

    list = items(d.list_deployments)
    get = answer(d.get_deployment)
    create = answer(d.create_deployment)
    start = answer(d.start_deployment)
    stop = answer(d.stop_deployment)
    restart = answer(d.restart_deployment)
    rebuild = answer(d.rebuild_deployment)
    drain = answer(d.drain_deployment)
    delete = answer(d.delete_deployment)
    attach_token = answer(d.attach_token)
    attach = answer(d.attach_deployment)
    detach = answer(d.detach_deployment)
    overview = answer(d.get_overview)
    cache = answer(d.get_cache)
    policy = answer(d.get_policy)
    policy_revisions = answer(d.list_policy_revisions)
    compare_policies = answer(d.compare_policies)
    simulate_policy = answer(d.simulate_policy)
    policy_violations = answer(d.list_policy_violations)
    sync_policy = answer(d.sync_policy)
    process_log = answer(d.get_process_log)

    def wait(
        self, deployment_id: str, state: str = "running", *, timeout_s: float = 600.0
    ) -> Deployment:
        """Wait until the deployment is in the state.

        Raises WaitedTooLongError, and WaitedInVainError where it failed or is deleted.
        """
        call = d.get_deployment(deployment_id)
        return self._link.poll(call, in_state(state), timeout_s, reached(state))


class Users(Group):
    """End users, their sessions, and where their data is."""

    list = items(d.search_users)
    sessions = items(d.search_sessions)
    where_is = items(d.where_is)
    label = answer(d.put_tenants)
    label_list = answer(d.import_tenants)
    labels = answer(d.get_tenants)


class Erasures(Group):
    """Erasures: planned, confirmed, followed."""

    list = items(e.list_erasures)
    get = answer(e.get_erasure)
    plan = answer(e.plan_erasure)
    erase = answer(e.erase)
    plan_user = answer(e.plan_user_erasure)
    erase_user = answer(e.erase_user)
    plan_wide = answer(e.plan_wide_erasure)
    ask_wide_approval = answer(e.ask_wide_approval)
    erase_wide = answer(e.erase_wide)

    def wait(
        self, deployment_id: str, erasure_id: str, *, timeout_s: float = 120.0
    ) -> ErasureProgress:
        """Wait until the erasure has its certificate. Raises WaitedTooLongError."""
        call = e.get_erasure(deployment_id, erasure_id)
        return self._link.poll(call, certified, timeout_s, erasure_done(erasure_id))


class Certificates(Group):
    """Erasure certificates, and the keys to check them with."""

    list = items(e.list_certificates)
    download = answer(e.get_certificate)
    page = answer(e.get_certificate_page)
    pdf = answer(e.get_certificate_pdf)
    trust_anchor = answer(e.get_trust_anchor)


class Audit(Group):
    """Deployments' audit logs."""

    show = answer(e.get_audit)
    records = items(e.list_records)
    collect = answer(e.collect_now)
    segment = answer(e.get_segment)


class FineTunes(Group):
    """Fine-tunes and their evaluations."""

    list = answer(m.list_finetunes)
    get = answer(m.get_finetune)
    statement = answer(m.get_finetune_statement)
    create = answer(m.create_finetune)
    resume = answer(m.resume_finetune)
    cancel = answer(m.cancel_finetune)
    delete = answer(m.delete_finetune)
    served = answer(m.get_served_evaluation)


class Isolation(Group):
    """Isolation self-tests."""

    list = answer(m.list_isolation)
    run = answer(m.run_isolation)


class Storage(Group):
    """A workspace's Storage."""

    browse = items(e.browse_storage)
    read = answer(e.read_object)


class Evidence(Group):
    """Evidence for auditors."""

    controls = answer(e.get_controls)
    start = answer(e.start_evidence)
    start_deployment = answer(e.start_deployment_evidence)
    list = items(e.list_evidence)
    get = answer(e.get_evidence)
    download = answer(e.get_bundle)
    trust_anchor = answer(e.get_evidence_anchor)


class Alerts(Group):
    """Alerts."""

    list = items(e.list_alerts)
    acknowledge = answer(e.acknowledge_alerts)


class Client(Group):
    """The control plane's API, waiting for each answer. Safe between threads.

    ``url`` and ``api_key`` come from ``KVRUN_API_URL`` and ``KVRUN_API_KEY`` where they are not
    given; without either the address is http://127.0.0.1:8090. A person's login takes the place of
    an API key. ``timeout_s`` bounds how long an
    answer may take; erasing and collecting may take longer. ``verify`` is an ``ssl.SSLContext`` for
    an authority of your own.

    Raises ClientError, from every method: UnreachableError, BadAnswerError, NotAvailableError,
    WaitedTooLongError, WaitedInVainError and ApiError with its kinds.
    """

    me = answer(p.me)
    sign_out = answer(p.sign_out)

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  immutable
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.address = address(url, api_key)
        link = Link(
            self.address,
            timeout_s=timeout_s,
            retry=retry,
            verify=verify,
            transport=transport,
            sleep=sleep,
        )
        super().__init__(link)
        self.workspaces = Workspaces(link)
        self.members = Members(link)
        self.service_accounts = ServiceAccounts(link)
        self.api_keys = ApiKeys(link)
        self.logins = Logins(link)
        self.approvals = Approvals(link)
        self.deployments = Deployments(link)
        self.users = Users(link)
        self.erasures = Erasures(link)
        self.certificates = Certificates(link)
        self.finetunes = FineTunes(link)
        self.isolation = Isolation(link)
        self.audit = Audit(link)
        self.storage = Storage(link)
        self.evidence = Evidence(link)
        self.alerts = Alerts(link)

    def close(self) -> None:
        """Let go of the connections."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.address.url!r})"
