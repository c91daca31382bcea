"""What every form that erases asks besides: why, and whether one is sure."""

from kvrun.api.erasures import Reasons
from kvrun.console.forms import Form


def read_reasons(form: Form) -> Reasons:
    """Reference and legal basis; certificates keep them."""
    return Reasons(
        form.text("reference", "The reference"), form.text("legal_basis", "The legal basis")
    )


def require_sure(form: Form) -> None:
    """Blame the tick that is missing, once everything else is right."""
    if not form.flag("sure") and not form.errors:
        form.errors["sure"] = "Confirm that it cannot be undone."
