"""What every page of the console must be, read from its HTML."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "input", "br", "img", "hr", "rect"})
CONTROLS = frozenset({"input", "select", "textarea"})


class Page(HTMLParser):
    """The parts of a page that rules are about."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = text
        self.problems: list[str] = []
        self.headings: list[str] = []
        self.ids: list[str] = []
        self.labelled: set[str] = set()
        self.controls: list[dict[str, str]] = []
        self.links: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.buttons: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self._form: dict[str, str] | None = None
        self.feed(text)
        if self._open:
            self.problems.append(f"not closed: {self._open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at one element."""
        given = {name: value or "" for name, value in attrs}
        if tag not in VOID:
            self._open.append(tag)
        for name, value in given.items():
            if name == "style" or name.startswith("on"):
                self.problems.append(f"inline {name} on {tag}")
            if name in ("src", "href", "action", "hx-get", "sse-connect"):
                self.links.append(value)
                if not value.startswith(("/", "#")) or value.startswith("//"):
                    self.problems.append(f"{tag} {name}={value!r} leaves the host")
        if "id" in given:
            self.ids.append(given["id"])
        if tag in ("h1", "h2", "h3"):
            self.headings.append(tag)
        if tag == "label":
            self.labelled.add(given.get("for", ""))
        if tag in CONTROLS and given.get("type") != "hidden":
            inside = "label" in self._open
            self.controls.append({**given, "inside": "yes" if inside else ""})
        if tag == "form":
            self._form = {"method": "get", **given}
            self.forms.append(self._form)
        if tag == "input" and self._form is not None:
            self._form[f"field:{given.get('name', '')}"] = given.get("value", "")
        if tag == "script" and not given.get("src"):
            self.problems.append("an inline script")
        if tag == "style":
            self.problems.append("an inline style sheet")

    def handle_endtag(self, tag: str) -> None:
        """Close one element."""
        if tag in VOID:
            return
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")
        if tag == "form":
            self._form = None

    def handle_data(self, data: str) -> None:
        """Gather words."""
        if data.strip():
            self.words.append(" ".join(data.split()))

    @property
    def said(self) -> str:
        """All words of the page."""
        return " ".join(self.words)


def check(text: str) -> Page:
    """The page, which keeps the rules."""
    page = Page(text)
    assert page.problems == []
    assert page.headings.count("h1") == 1, page.headings
    assert len(page.ids) == len(set(page.ids)), sorted(page.ids)
    assert page.text.startswith("<!doctype html>")
    assert 'lang="en"' in text
    assert 'id="main"' in text
    assert 'class="skip"' in text
    for control in page.controls:
        named = control.get("id", "") in page.labelled or control["inside"]
        assert named or control.get("aria-label"), control
        told = control.get("aria-describedby", "").split()
        assert set(told) <= set(page.ids), control
    for form in page.forms:
        if form["method"] == "post" and not form["action"].startswith("/sign-in"):
            assert form.get("field:csrf_token"), form
    return page
