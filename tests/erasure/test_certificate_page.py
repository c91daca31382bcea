"""verify.html can do nothing but what stands in it."""

import importlib.util
import re

from kvrun.audit.record import Event, Outcome, Record
from kvrun.erasure.certificate import ChildOutcome, RequestKind
from kvrun.erasure.certificate import Outcome as CertificateOutcome
from kvrun.erasure.report import CheckCode
from kvrun.keys.filesystem import ClaimClass
from support import standalone
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


def test_page_and_stand_alone_verifier_know_every_word_that_kvrun_knows() -> None:
    other = standalone.load()
    events = re.search(r'const EVENTS = words\("([^"]*)"\)', PAGE)
    assert events is not None
    assert set(events[1].split()) == other.EVENTS == {str(event) for event in Event}
    assert {*other.REQUIRED, *other.OPTIONAL} == set(Record.__struct_fields__)
    shapes = repr((other.PREDICATE, other.REQUIRED))
    for kind in (RequestKind, ChildOutcome, CertificateOutcome, ClaimClass, Outcome):
        for item in kind:
            assert f"'{item.value}'" in shapes
            assert re.search(rf'words\("[^"]*\b{item.value}\b[^"]*"\)', PAGE)


def test_page_and_stand_alone_verifier_give_every_answer_that_kvrun_gives() -> None:
    for source in (PAGE, standalone.FILE.read_text()):
        assert [code for code in CheckCode if f'"{code}"' not in source] == []
