"""What people and programs are refused, and why."""

from kvrun.errors import KvrunError


class AccountsError(KvrunError):
    """A request about people, roles or keys that is not granted."""

    status = 400


class UnauthenticatedError(AccountsError):
    """Nobody is signed in with this credential. It never says which part was wrong."""

    status = 401


class ForbiddenError(AccountsError):
    """The caller is known here and may not do this."""

    status = 403


class NotFoundError(AccountsError):
    """There is no such thing, or the caller has no business to know that there is."""

    status = 404


class ConflictError(AccountsError):
    """It contradicts what is there: a name that is taken, the last owner, a second use."""

    status = 409


class InvalidError(AccountsError):
    """A value that is not allowed; the message names the field and what is."""

    status = 422


class ApprovalNeededError(AccountsError):
    """A second person has to agree first."""

    status = 403


class SignInError(AccountsError):
    """The identity provider's answer is not believed, or the provider cannot be asked."""

    status = 401
