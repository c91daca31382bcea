"""verify.html can do nothing but what stands in it."""

import importlib.util
import re

from support.standalone import ROOT

PAGE = (ROOT / "verify/verify.html").read_text()


def test_the_policy_admits_exactly_the_pages_script_and_style() -> None:
    """When this fails after an edit: ``python scripts/seal_verify_page.py``."""
    spec = importlib.util.spec_from_file_location("seal", ROOT / "scripts/seal_verify_page.py")
    assert spec is not None
    assert spec.loader is not None
    seal = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(seal)
    assert seal.sealed(PAGE) == PAGE
    assert "default-src 'none'" in seal.policy(PAGE)


def test_the_page_names_no_address_and_writes_no_markup() -> None:
    addresses = re.findall(r"https?://[^\s\"'`$]+", PAGE)
    assert set(addresses) == {"https://kvrun.dev/", "https://in-toto.io/Statement/v1"}
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in PAGE
