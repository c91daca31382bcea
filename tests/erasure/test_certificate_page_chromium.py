"""verify.html in a real browser says what ``kvrun verify`` says, alone and from disk."""

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from certificate_corpus import CASES, CONTROL, Case, control_anchor, misshapen
from certificate_world import NOW, Operator, statement
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from playwright.sync_api import Browser, Page

from audit.pruned_world import CHANGES, prune
from audit.simulator import ATTACKS, Attack, honest, signer
from kvrun.audit.files import verify_files
from kvrun.audit.verify import Trust
from kvrun.erasure.check import check_certificate
from kvrun.erasure.logproof import make_log_proof
from kvrun.erasure.view_html import certificate_html
from support import standalone
from support.browser import chromium

PAGE = standalone.ROOT / "verify/verify.html"
WIDTHS = (390, 1440)
SCHEMES = ("light", "dark")
CHECK = """async ([data, anchor, now, opening, subject, logProof]) => {
  const bytes = (text) => text === null ? null : kvrun.unbase64(text);
  const { checks } = await kvrun.checkCertificate(bytes(data), {
    anchor: anchor === null ? null : kvrun.readAnchor(bytes(anchor)),
    now, opening: bytes(opening), subject, logProof: bytes(logProof),
  });
  return checks.map((check) => check.slice(0, 3));
}"""
LOG = """async ([segments, latest, claimed, key, remembered, now, witnesses, tombstones]) => {
  const bytes = (text) => text === null ? null : kvrun.unbase64(text);
  const check = new kvrun.LogCheck({
    keys: key ? [kvrun.verifierKey(key)] : [], remembered: remembered.map(bytes), now, maxAge: 60,
    witnesses: witnesses.map(kvrun.verifierKey), tombstones: tombstones.map(bytes),
  });
  const parts = segments.map(([name, data, manifest]) =>
    ({ name, bytes: bytes(data), manifest: bytes(manifest) }));
  await check.run(parts, bytes(latest), claimed);
  return check.findings.map((finding) => finding.slice(0, 3));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module", params=["", "#plain"], ids=["webcrypto", "plain"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    opened = browser.new_page()
    opened.goto(PAGE.as_uri() + request.param)
    yield opened
    opened.close()


def encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def asked(page: Page, case: Case) -> list[list[str]]:
    arguments = [encoded(case.data), encoded(case.anchor), case.now, encoded(case.opening)]
    arguments += [case.subject, encoded(case.log_proof)]
    found: list[list[str]] = page.evaluate(CHECK, arguments)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_page_says_what_kvrun_verify_says(page: Page, case: Case) -> None:
    expected = [[str(c.name), str(c.verdict), str(c.code)] for c in case.check().checks]
    assert asked(page, case) == expected


def test_the_page_says_the_same_of_changed_bytes(page: Page) -> None:
    chance = random.Random(7)
    good = Operator().issue()
    anchor = msgspec.json.encode(good.anchor)
    for _ in range(60):
        data = bytearray(good.data)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case = Case("changed", bytes(data), "", anchor)
        report = check_certificate(bytes(data), anchor=good.anchor, now=NOW)
        assert [item[2] for item in asked(page, case)] == [str(c.code) for c in report.checks]


def test_the_page_says_the_same_of_misshapen_statements(page: Page) -> None:
    good = Operator().issue()
    anchor = msgspec.json.encode(good.anchor)
    for name, data in misshapen(every=13):
        report = check_certificate(data, anchor=good.anchor, now=NOW)
        found = asked(page, Case(name, data, "", anchor))
        assert [item[2] for item in found] == [str(c.code) for c in report.checks], name


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.run.__name__)
def test_the_page_names_every_attack_on_a_log(page: Page, attack: Attack, tmp_path: Path) -> None:
    world = honest(tmp_path)
    attack.run(world)
    key, now = signer().key, 1_800_000_000.0
    segments, latest, claimed, _ = standalone.load().log_files([world.folder])
    parts = [[name, encoded(data), encoded(manifest)] for name, data, manifest in segments]
    kept = [encoded(world.remembered)]
    for keys in ((key,), ()):
        trust = Trust(keys=keys, remembered=(world.remembered,), now=now, max_age_seconds=60)
        report = verify_files([world.folder], trust)
        given = keys[0].text() if keys else ""
        found = page.evaluate(LOG, [parts, encoded(latest), claimed, given, kept, now, [], []])
        assert {tuple(item) for item in found} == {
            (str(item.aspect), str(item.verdict), str(item.code)) for item in report.findings
        }


@pytest.mark.parametrize("change", CHANGES)
def test_the_page_judges_a_pruned_beginning_alike(
    page: Page, change: str | None, tmp_path: Path
) -> None:
    world = honest(tmp_path)
    witness, key = prune(world, change), signer().key
    report = verify_files([world.folder], Trust(keys=(key,), witnesses=(witness,)))
    segments, latest, claimed, stones = standalone.load().log_files([world.folder])
    parts = [[name, encoded(data), encoded(manifest)] for name, data, manifest in segments]
    others = [[witness.text()], [encoded(stone) for stone in stones]]
    found = page.evaluate(LOG, [parts, encoded(latest), claimed, key.text(), [], None, *others])
    assert {item[2] for item in found} == {str(code) for code in report.codes()}
    assert CHANGES[change] in {item[2] for item in found}


def test_the_pages_own_ed25519_is_right(page: Page) -> None:
    chance = random.Random(1)
    for size in (0, 1, 111, 112, 127, 128, 129, 1000):
        private = Ed25519PrivateKey.from_private_bytes(chance.randbytes(32))
        public, message = private.public_key().public_bytes_raw(), chance.randbytes(size)
        signature = private.sign(message)
        wrong = bytearray(signature)
        wrong[chance.randrange(64)] ^= 1
        for candidate, good in ((signature, True), (bytes(wrong), False)):
            parts = [encoded(part) for part in (public, message, candidate)]
            script = "(parts) => kvrun.verifyPlainly(...parts.map(kvrun.unbase64))"
            assert page.evaluate(script, parts) is good


def test_files_are_chosen_and_the_answer_is_shown(page: Page, tmp_path: Path) -> None:
    good = Operator().issue()
    contents = {
        "certificate.json": good.data,
        "anchor.json": control_anchor(),
        "opening.json": good.opening,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    page.get_by_role("button", name="Start over").click()
    page.set_input_files("#pick", [str(tmp_path / "certificate.json")])
    page.wait_for_selector(".state.unknown")
    assert "self-asserted" in page.inner_text("#results .state")
    page.set_input_files("#pick", [str(tmp_path / name) for name in contents])
    page.wait_for_selector(".state.pass")
    page.fill("#subject", "chat-8")
    page.wait_for_selector(".state.fail")
    assert "other subject" in page.inner_text("#results .state")
    page.fill("#subject", "chat-7")
    page.wait_for_selector(".state.pass")
    proofs = {
        "a": CONTROL.include(good.signed.digest),
        "b": CONTROL.include("ab" * 32),
        "ledger": Operator().include(good.signed.digest),
    }
    for name, inclusion in proofs.items():
        (tmp_path / name).write_bytes(make_log_proof(inclusion))
    page.set_input_files("#pick", [str(tmp_path / "ledger")])
    page.wait_for_selector(".state.fail")
    assert "foreign log" in page.inner_text("#results .state")
    page.set_input_files("#pick", [str(tmp_path / "b")])
    page.wait_for_selector(".state.fail")
    page.set_input_files("#pick", [str(tmp_path / "a")])
    page.wait_for_selector(".state.pass")
    assert "control_log" in page.inner_text("#results")
    other = tmp_path / "other.json"
    other.write_bytes(Operator().issue(statement(unacknowledged=["i-2"])).data)
    page.set_input_files("#pick", [str(other)])
    page.wait_for_selector(".state.fail")
    failed = page.locator(".state.fail").all_inner_texts()
    assert sorted(text.split()[2] for text in failed) == ["b", "ledger"]


def test_the_page_loads_nothing_and_runs_only_its_own_script(browser: Browser) -> None:
    page = browser.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(PAGE.as_uri())
    assert requested == [PAGE.as_uri()]
    blocked: Any = page.evaluate(
        """async () => {
          const image = new Image();
          const refused = new Promise((done) =>
            document.addEventListener("securitypolicyviolation", (event) => done(event)));
          image.src = "https://example.com/pixel.png";
          return (await refused).blockedURI;
        }"""
    )
    assert blocked.startswith("https://example.com")
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_fit_a_phone_and_a_desk(
    browser: Browser, width: int, scheme: Any, tmp_path: Path
) -> None:
    good = Operator().issue()
    view = tmp_path / "view.html"
    report = check_certificate(good.data, anchor=good.anchor, now=NOW)
    view.write_bytes(certificate_html(report, now=NOW))
    (tmp_path / "certificate.json").write_bytes(good.data)
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    for path in (view, PAGE):
        page.goto(path.as_uri())
        if path == PAGE:
            page.set_input_files("#pick", [str(tmp_path / "certificate.json")])
            page.wait_for_selector("#results .state")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 18, 24)"
        assert dark == (scheme == "dark")
    context.close()
