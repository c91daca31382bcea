"""Sign-in at a real provider: good ones let people in, lies and replays let nobody in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from accounts_rig import Site

from kvrun.accounts import (
    AccessEventKind,
    OidcClient,
    OidcSettings,
    OidcStart,
    Role,
    SignIn,
)
from kvrun.accounts.errors import ForbiddenError, SignInError
from kvrun.accounts.oidc import challenge_of, roles_by_group
from kvrun.accounts.oidc_sign_ins import FLOW_LASTS_S
from support.oidc_provider import Lies, OidcProvider, Person

CALLBACK = "http://127.0.0.1:8090/sign-in/callback"
ROLES = {"admins": "acme:admin", "dpo": "acme:privacy", "ops": "developer"}


class Browser:
    """A person's browser: it keeps one cookie and follows the provider's redirect by hand."""

    def __init__(self, site: Site, client: OidcClient, http: httpx.Client) -> None:
        self.site, self.client, self.http = site, client, http

    def go(self) -> tuple[OidcStart, dict[str, str]]:
        """Begin, visit the provider, and come back with what it put into the address."""
        start = self.site.accounts.begin_oidc(self.client)
        answer = self.http.get(start.url)
        assert answer.status_code == 302, answer.text
        target = answer.headers["location"]
        assert target.startswith(CALLBACK + "?")
        return start, {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}

    def come_back(self, start: OidcStart, answer: dict[str, str]) -> SignIn:
        """Hand over what the provider's redirect carried."""
        return self.site.accounts.finish_oidc(
            self.client,
            start.browser_token,
            state=answer["state"],
            code=answer["code"],
            issuer=answer.get("iss"),
            roles=ROLES,
            first_workspace="default",
        )

    def sign_in(self) -> SignIn:
        """The whole way."""
        return self.come_back(*self.go())


@pytest.fixture(scope="module")
def running() -> Iterator[OidcProvider]:
    provider = OidcProvider()
    provider.redirect_uris.add(CALLBACK)
    yield provider
    provider.stop()


@pytest.fixture
def provider(running: OidcProvider) -> OidcProvider:
    """The provider as it was at first: honest, with nobody in a group."""
    running.person, running.lies, running.client_secret = Person(), Lies(), "s e/cret+1"
    running.asked.clear()
    return running


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=10) as client:
        yield client


def client_of(
    provider: OidcProvider, http: httpx.Client, *, secret: str | None = "s e/cret+1"
) -> OidcClient:
    settings = OidcSettings(provider.issuer, "kvrun", CALLBACK, client_secret=secret)
    return OidcClient(settings, http, time.monotonic)


@pytest.fixture
def browser(local_site: Site, provider: OidcProvider, http: httpx.Client) -> Browser:
    local_site.workspace("acme")
    local_site.workspace("default")
    return Browser(local_site, client_of(provider, http), http)


def test_a_group_gives_a_role_and_takes_it_again(browser: Browser, provider: OidcProvider) -> None:
    accounts, acme = browser.site.accounts, browser.site.workspace("acme")
    default = browser.site.workspace("default")
    provider.person = Person(groups=["admins", "dpo", "ops", "others"])
    actor = accounts.actor_of(browser.sign_in().token)
    assert actor.name == "Alice"
    assert actor.roles == {acme.id: Role.ADMIN, default.id: Role.DEVELOPER}
    provider.person = Person(groups=["dpo"])
    again = accounts.actor_of(browser.sign_in().token)
    assert (again.id, again.roles) == (actor.id, {acme.id: Role.PRIVACY})
    told = {(event.kind, event.detail) for event in browser.site.events if event.workspace_id}
    assert (AccessEventKind.ROLE_CHANGED, "admin -> privacy, by group") in told
    provider.person = Person(groups=[])
    with pytest.raises(ForbiddenError, match="nobody has given you a role"):
        browser.sign_in()
    assert (
        accounts.actor_of(browser.site.accounts.open_sign_in(actor.id, method="x").token).roles
        == {}
    )


def test_a_role_given_by_hand_stays_whatever_the_groups_say(
    browser: Browser, provider: OidcProvider
) -> None:
    acme = browser.site.workspace("acme")
    owner = browser.site.local_owner()
    browser.site.accounts.add_member(owner, acme.id, "alice@example.com", Role.AUDITOR)
    provider.person = Person(groups=["admins"])
    for _ in range(2):
        actor = browser.site.accounts.actor_of(browser.sign_in().token)
        assert actor.roles == {acme.id: Role.AUDITOR}


def test_an_address_that_the_provider_did_not_verify_uses_no_invitation(
    browser: Browser, provider: OidcProvider
) -> None:
    acme = browser.site.workspace("acme")
    owner = browser.site.local_owner()
    browser.site.accounts.add_member(owner, acme.id, "alice@example.com", Role.OWNER)
    provider.person = Person(email_verified=False)
    with pytest.raises(ForbiddenError):
        browser.sign_in()
    provider.lies = Lies(claims={"email_verified": "true"})
    with pytest.raises(ForbiddenError):
        browser.sign_in()


def test_a_public_client_signs_in_with_pkce_alone(
    local_site: Site, provider: OidcProvider, http: httpx.Client
) -> None:
    local_site.workspace("acme")
    provider.client_secret = None
    provider.person = Person(groups=["dpo"])
    Browser(local_site, client_of(provider, http, secret=None), http).sign_in()


def test_a_wrong_client_secret_signs_nobody_in(
    local_site: Site, provider: OidcProvider, http: httpx.Client
) -> None:
    provider.person = Person(groups=["dpo"])
    with pytest.raises(SignInError, match="HTTP 401"):
        Browser(local_site, client_of(provider, http, secret="wrong"), http).sign_in()


def test_a_new_signing_key_is_fetched(
    browser: Browser, provider: OidcProvider, local_site: Site, http: httpx.Client
) -> None:
    clock = [0.0]
    settings = OidcSettings(provider.issuer, "kvrun", CALLBACK, client_secret="s e/cret+1")
    browser.client = OidcClient(settings, http, lambda: clock[0])
    provider.person = Person(groups=["dpo"])
    browser.sign_in()
    provider.rotate_key()
    with pytest.raises(SignInError, match="unknown key"):  # keys are not fetched all the time
        browser.sign_in()
    clock[0] += 30
    browser.sign_in()
    assert provider.asked.count("/jwks") == 2


@pytest.mark.parametrize(
    ("lies", "why"),
    [
        (Lies(claims={"nonce": "another"}), "another sign-in"),
        (Lies(claims={"nonce": None}), "nonce is missing"),
        (Lies(claims={"nonce": ["x"]}), "another sign-in"),
        (Lies(leave_out=("nonce",)), "nonce is missing"),
        (Lies(claims={"aud": "another-client"}), "another client"),
        (Lies(claims={"aud": ["kvrun", "another"]}), "another client"),
        (Lies(claims={"aud": ["kvrun", "another"], "azp": "another"}), "another client"),
        (Lies(claims={"azp": "another"}), "another client"),
        (Lies(claims={"iss": "https://evil.example"}), "another issuer"),
        (Lies(claims={"exp": 1_000_000}), "expired"),
        (Lies(leave_out=("exp",)), "exp is missing"),
        (Lies(leave_out=("iat",)), "iat is missing"),
        (Lies(leave_out=("sub",)), "sub is missing"),
        (Lies(claims={"sub": ""}), "subject"),
        (Lies(claims={"sub": "x\0"}), "subject"),
        (Lies(claims={"iat": 99_999_999_999}), "not valid"),
        (Lies(alg="none"), "algorithm"),
        (Lies(alg="HS256"), "algorithm"),
        (Lies(foreign_key=True), "signature"),
        (Lies(key_id="made-up"), "unknown key"),
        (Lies(alg="RS512"), "algorithm"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_token_that_lies_signs_nobody_in(
    browser: Browser, provider: OidcProvider, lies: Lies, why: str
) -> None:
    provider.person = Person(groups=["admins"])
    provider.lies = lies
    with pytest.raises(SignInError, match=why) as caught:
        browser.sign_in()
    assert caught.value.status == 401
    assert browser.site.kinds()[-1] is AccessEventKind.SIGN_IN_FAILED
    assert AccessEventKind.SIGNED_IN not in browser.site.kinds()


@pytest.mark.parametrize(
    ("lies", "why"),
    [
        (Lies(discovery={"issuer": "https://evil.example"}), "names itself differently"),
        (Lies(discovery={"token_endpoint": "http://evil.example/token"}), "over https"),
        (Lies(discovery={"jwks_uri": "file:///etc/passwd"}), "over https"),
        (Lies(discovery={"code_challenge_methods_supported": ["plain"]}), "PKCE"),
        (Lies(discovery={"token_endpoint": 7}), "metadata cannot be read"),
        (Lies(padding_bytes=2 << 20), "too long"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_provider_that_is_not_what_was_configured_is_not_asked(
    browser: Browser, provider: OidcProvider, lies: Lies, why: str
) -> None:
    provider.lies = lies
    with pytest.raises(SignInError, match=why):
        browser.go()


def test_a_provider_that_is_away_says_so_and_an_earlier_one_does_not_matter(
    local_site: Site, http: httpx.Client
) -> None:
    gone = OidcProvider()
    gone.stop()
    with pytest.raises(SignInError, match="does not answer"):
        local_site.accounts.begin_oidc(client_of(gone, http))


def test_the_secret_does_not_follow_a_redirect(browser: Browser, provider: OidcProvider) -> None:
    provider.lies = Lies(redirect_token_to=f"{provider.issuer}/elsewhere")
    with pytest.raises(SignInError, match="HTTP 307"):
        browser.sign_in()
    assert "/elsewhere" not in provider.asked


def test_a_finished_sign_in_does_not_finish_again(browser: Browser, provider: OidcProvider) -> None:
    provider.person = Person(groups=["dpo"])
    provider.lies = Lies(reuse_codes=True)
    start, answer = browser.go()
    browser.come_back(start, answer)
    with pytest.raises(SignInError, match="finished before"):
        browser.come_back(start, answer)


def test_a_replayed_code_signs_nobody_in(browser: Browser, provider: OidcProvider) -> None:
    provider.person = Person(groups=["dpo"])
    used, answer = browser.go()
    browser.come_back(used, answer)
    start, fresh = browser.go()
    with pytest.raises(SignInError, match="HTTP 400"):
        browser.come_back(start, {**fresh, "code": answer["code"]})


@pytest.mark.parametrize("pkce", [True, False])
def test_a_code_of_another_persons_sign_in_signs_nobody_in(
    browser: Browser, provider: OidcProvider, pkce: bool
) -> None:
    """Code injection: PKCE stops it, and the nonce where a provider does not check PKCE."""
    provider.person = Person(groups=["dpo"])
    provider.lies = Lies(ignore_pkce=not pkce)
    _, stolen = browser.go()
    start, own = browser.go()
    with pytest.raises(SignInError, match="HTTP 400" if pkce else "another sign-in"):
        browser.come_back(start, {**own, "code": stolen["code"]})


def test_a_sign_in_finishes_in_the_browser_that_began_it(
    browser: Browser, provider: OidcProvider
) -> None:
    """Login CSRF: an attacker's answer in a victim's browser."""
    provider.person = Person(groups=["dpo"])
    _, attackers = browser.go()
    victim, _ = browser.go()
    with pytest.raises(SignInError, match="not begun in this browser"):
        browser.come_back(victim, attackers)
    with pytest.raises(SignInError, match="not begun in this browser"):
        browser.come_back(OidcStart("", "A" * 43), attackers)
    for missing in ("", "\ud800", "x" * 10_000):
        with pytest.raises(SignInError, match="not begun in this browser"):
            browser.come_back(OidcStart("", missing), attackers)


def test_a_sign_in_that_took_too_long_is_over(browser: Browser, provider: OidcProvider) -> None:
    provider.person = Person(groups=["dpo"])
    start, answer = browser.go()
    browser.site.now += FLOW_LASTS_S
    with pytest.raises(SignInError, match="too old"):
        browser.come_back(start, answer)


def test_an_answer_from_another_provider_is_not_followed(
    browser: Browser, provider: OidcProvider
) -> None:
    """Mix-up (RFC 9207): the provider says that it names itself, so it must, and rightly."""
    provider.person = Person(groups=["dpo"])
    for iss, why in (("https://evil.example", "another identity provider"), (None, "who it is")):
        start, answer = browser.go()
        del answer["iss"]
        with pytest.raises(SignInError, match=why):
            browser.come_back(start, answer if iss is None else {**answer, "iss": iss})
    assert "/token" not in provider.asked


@pytest.mark.parametrize("code", ["", "\ud800", "x" * 5000, "a\nb"])
def test_a_code_that_is_none_is_not_sent_to_the_provider(
    browser: Browser, provider: OidcProvider, code: str
) -> None:
    start, answer = browser.go()
    with pytest.raises(SignInError, match="has no code"):
        browser.come_back(start, {**answer, "code": code})
    assert "/token" not in provider.asked


def test_the_provider_itself_refuses_what_the_specifications_forbid(
    provider: OidcProvider, http: httpx.Client
) -> None:
    asked = {
        "response_type": "code",
        "client_id": "kvrun",
        "scope": "openid",
        "state": "s",
        "code_challenge_method": "plain",
        "code_challenge": "x" * 43,
    }
    elsewhere = {**asked, "redirect_uri": "http://127.0.0.1:1/"}
    assert http.get(f"{provider.issuer}/authorize", params=elsewhere).status_code == 400
    here = http.get(f"{provider.issuer}/authorize", params={**asked, "redirect_uri": CALLBACK})
    assert "error=invalid_request" in here.headers["location"]


def test_the_challenge_is_that_of_the_specifications_example() -> None:
    """RFC 7636, appendix B."""
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    assert challenge_of(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_of_several_groups_the_strongest_role_counts() -> None:
    mapping = {"a": "auditor", "p": "privacy", "d": "developer", "o": "other:owner"}
    found = roles_by_group(frozenset({"a", "d", "p", "o", "unknown"}), mapping, "first")
    assert found == {"first": Role.PRIVACY, "other": Role.OWNER}
    assert roles_by_group(frozenset({"unknown"}), mapping, "first") == {}
