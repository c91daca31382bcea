"""Debian's Chromium for tests of pages. ``scripts/test.sh`` installs it and says when it cannot."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without network that ends with the block."""
    found = shutil.which("chromium")
    assert found, "chromium is not installed: apt-get install chromium, or run scripts/test.sh"
    with sync_playwright() as playwright:
        # As root in a container Chromium's own sandbox does not start.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
