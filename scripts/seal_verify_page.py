"""Write the hashes of its script and style into the content security policy of verify.html.

With them the browser runs and applies exactly what is in the page, and loads nothing.
"""

import base64
import hashlib
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "verify/verify.html"


def policy(page: str) -> str:
    """The policy that fits the page's one script and one style."""
    script, style = (
        base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for part in (_inner(page, "script"), _inner(page, "style"))
    )
    return (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )


def sealed(page: str) -> str:
    """The page with the policy that fits it."""
    return re.sub(
        r'(http-equiv="Content-Security-Policy" content=)"[^"]*"',
        lambda found: f'{found[1]}"{policy(page)}"',
        page,
        count=1,
    )


def _inner(page: str, tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    if found is None:
        raise SystemExit(f"the page has no {tag}")
    return found[1]


if __name__ == "__main__":
    PAGE.write_text(sealed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
