"""The bundle's page in a real browser: both widths, both schemes, and on paper."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import pytest
from evidence_world import JANUARY, quarter
from playwright.sync_api import Browser

from kvrun.evidence.export import Request
from support.browser import chromium

COLOURS = """all => all.map((one) => {
  const style = getComputedStyle(one);
  return [style.color, style.backgroundColor];
})"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked bundle."""
    world = quarter(tmp_path_factory.mktemp("world"))
    with zipfile.ZipFile(world.export("january.zip", Request(JANUARY, full=True))) as archive:
        archive.extractall(world.root / "unpacked")
    return world.root / "unpacked"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_reads_well_and_loads_nothing(
    folder: Path, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto((folder / "index.html").as_uri())
    assert asked == [(folder / "index.html").as_uri()]
    assert said == [], "the policy admits the page's own style"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("getComputedStyle(document.querySelector('.state')).fontWeight") == "600"
    states = page.locator("table").first.locator(".state").all_inner_texts()
    assert states == ["evidence present"] * 5 + ["no evidence in the period"]
    colours = page.locator("table").first.locator(".state").evaluate_all(COLOURS)
    assert len({tuple(both) for both in colours[:5]}) == 1
    assert not set(colours[0]) & set(colours[5]), "what is not there is not green"
    assert "remains between you and your auditor" in page.inner_text("header")
    for address in page.locator("a").evaluate_all("all => all.map((one) => one.href)"):
        assert Path(unquote(address.removeprefix("file://"))).is_file(), address
    context.close()


def test_it_prints_as_pages(folder: Path, browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto((folder / "index.html").as_uri())
    page.pdf(path=tmp_path / "evidence.pdf", format="A4", prefer_css_page_size=True)
    data = (tmp_path / "evidence.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") >= 2
    page.close()
