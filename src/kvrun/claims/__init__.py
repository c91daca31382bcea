"""Signed claims: who a request belongs to, stamped by the gateway and checked by the daemon."""

from kvrun.claims.claim import Claim, ClaimError, ClaimFault, ClaimSigner, key_id_of
from kvrun.claims.verify import ClaimVerifier, ReplayWindow

__all__ = [
    "Claim",
    "ClaimError",
    "ClaimFault",
    "ClaimSigner",
    "ClaimVerifier",
    "ReplayWindow",
    "key_id_of",
]
