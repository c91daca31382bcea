"""Errors of deployments."""

from kvrun.errors import KvrunError


class DeploymentNotFoundError(KvrunError):
    """There is no such deployment."""

    exit_code = 3
    status = 404


class SpecError(KvrunError):
    """What was asked for cannot be a deployment."""

    exit_code = 2
    status = 422


class NameTakenError(KvrunError):
    """The workspace has a deployment of that name."""

    exit_code = 2
    status = 409


class WrongStateError(KvrunError):
    """The deployment is in a state in which that cannot be done."""

    exit_code = 3
    status = 409


def not_attached(name: str) -> WrongStateError:
    """For a deployment that was not attached, and so cannot be detached."""
    return WrongStateError(
        f"the deployment {name} is not attached",
        hint="Only one that was attached is detached; others are deleted.",
    )


def read_only(name: str) -> WrongStateError:
    """For a deployment that is deleted."""
    return WrongStateError(
        f"the deployment {name} is deleted: it is read only",
        hint="Make a new one; the log and the certificates of this one stay to be read.",
    )


class NotOursError(KvrunError):
    """Somebody else runs the deployment: it is not for the control plane to start or stop."""

    exit_code = 3
    status = 409


class SharedGpuError(KvrunError):
    """Other processes use a GPU of the deployment, or nobody can tell."""

    exit_code = 3
    status = 409


class AttachTokenError(KvrunError):
    """The token is unknown, was used, or is too old; which of them is not said."""

    exit_code = 3
    status = 403


class AttachRefusedError(KvrunError):
    """The file cannot be attached; why is not said: it would tell of this machine's files."""

    exit_code = 2
    status = 400


class TenantImportError(KvrunError):
    """A list of tenants cannot be taken in; nothing of it was."""

    exit_code = 2
    status = 422


class UnreachableError(KvrunError):
    """Nobody can say now what a deployment holds."""

    exit_code = 3
    status = 503
