"""The HTML and PDF views show what the certificate says, and nothing can hide in them."""

import re
from html.parser import HTMLParser

import msgspec
import pytest
from certificate_corpus import CASES
from certificate_world import NOW, Operator, statement

from kvrun.erasure.certificate import DestroyedKeyEntry
from kvrun.erasure.check import check_certificate
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.report import CertificateReport
from kvrun.erasure.view_html import certificate_html
from kvrun.erasure.view_pdf import certificate_pdf
from kvrun.keys.filesystem import ClaimClass

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def report(**changes: object) -> CertificateReport:
    issued = Operator().issue(statement(**changes))
    return check_certificate(issued.data, anchor=issued.anchor, now=NOW)


def read(page: bytes) -> Tags:
    tags = Tags()
    tags.feed(page.decode())
    return tags


def test_the_page_shows_what_was_asked_and_what_is_claimed() -> None:
    text = read(certificate_html(report(), now=NOW)).text
    for shown in (
        "Erasure certificate",
        "er-20260202-0001",
        "Verified",
        "Jörg Müller <dpo@acme.example>",
        "DSAR-123",
        "GDPR Art. 17(1)(b)",
        "1 session key was destroyed. 600 sealed blocks (1.2 GiB) cannot be opened any more.",
        "device: the key was overwritten in place",
        "text that left the deployment as an answer",
        "included: record 4 of kvrun.test/control",
    ):
        assert shown in text


def test_no_value_becomes_markup() -> None:
    request = msgspec.structs.replace(statement().request, requester=HOSTILE, reference=HOSTILE)
    page = read(
        certificate_html(report(request=request, id=HOSTILE, exclusions=[HOSTILE]), now=NOW)
    )
    assert not page.tags & {"script", "img", "link", "iframe", "object", "form"}
    assert not any(name.startswith("on") for name in page.attributes)
    assert page.text.count("alert(1)") >= 4


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = certificate_html(report(), now=NOW).decode()
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href|url\()\s*=?", page.split("<body>")[1])
    assert "@media print" in page


def test_a_deletion_record_is_never_called_a_certificate() -> None:
    text = read(certificate_html(report(claim_class=ClaimClass.LOGICAL), now=NOW)).text
    assert "Key deletion record" in text
    assert "Erasure certificate" not in text
    assert "no certificate of erasure" in text


def test_what_failed_stands_at_the_top() -> None:
    failing = next(case for case in CASES if case.name == "wrong signer")
    text = read(certificate_html(failing.check(), now=NOW)).text
    assert "Does not hold: wrong signer" in text.split("Checks")[0]


def test_a_self_asserted_signer_is_said_at_the_top() -> None:
    alone = next(case for case in CASES if case.name == "without an anchor")
    text = read(certificate_html(alone.check(), now=NOW)).text
    assert "self-asserted" in text.split("Checks")[0]


def test_ten_thousand_keys_do_not_fill_the_view() -> None:
    key = DestroyedKeyEntry(key_id="3f" * 16, generation=1, session_ref="0a", tenant_ref="5f")
    text = read(certificate_html(report(keys=[key] * 10_000), now=NOW)).text
    assert "and 9,950 more in the certificate itself" in text
    assert text.count("3f" * 16) == 50


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whatever_can_be_read_can_be_shown(case: object) -> None:
    checked = case.check()  # type: ignore[attr-defined]
    for make in (certificate_html, certificate_pdf):
        if checked.statement is None:
            with pytest.raises(ErasureError):
                make(checked, now=NOW)
        else:
            assert make(checked, now=NOW)


def test_the_pdf_is_a_pdf_and_the_same_each_time() -> None:
    page = certificate_pdf(report(), now=NOW)
    assert page.startswith(b"%PDF-")
    assert page == certificate_pdf(report(), now=NOW)


def test_the_pdf_loses_no_character_silently() -> None:
    request = msgspec.structs.replace(statement().request, requester="山田 \u202e")
    assert certificate_pdf(report(request=request), now=NOW).startswith(b"%PDF-")
