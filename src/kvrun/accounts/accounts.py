"""Everything about people, workspaces and credentials, in one object."""

from kvrun.accounts.approvals import Approvals
from kvrun.accounts.keys import Keys
from kvrun.accounts.logins import Logins
from kvrun.accounts.members import Members
from kvrun.accounts.oidc_sign_ins import OidcSignIns
from kvrun.accounts.owner_link import OwnerLinks
from kvrun.accounts.workspaces import Workspaces


class Accounts(Workspaces, Members, Keys, OwnerLinks, OidcSignIns, Logins, Approvals):
    """Who may come in and what they may do. Safe between threads and processes.

    Made with ``Accounts(database, now, random_bytes, on_event, after_event=…, limits=…,
    owner_link=…)``; :class:`kvrun.accounts.part.Part` says what these are. ``now`` gives seconds
    since 1970. Methods that take an actor refuse what it may not do; those that say "for the
    program" do not, and no request reaches them directly.
    """
