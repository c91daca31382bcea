"""The console as people use it: a served control plane, real instance daemons, a real browser."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, Request

from deployments.deploy_rig import DAEMON, Rig, Users, end_all
from kvrun import console
from kvrun.accounts import write_owner_link
from kvrun.api.app import create_app
from kvrun.api.services import Services, open_services
from kvrun.config import parse_config
from kvrun.deployments.errors import WrongStateError
from kvrun.deployments.launcher import Launcher, Site
from kvrun.deployments.local import LocalLauncher
from kvrun.deployments.model import Deployment, DeploymentState, LauncherKind
from kvrun.deployments.watched import WatchedLauncher

WIDTHS = {"phone": 390, "desk": 1440}
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
DARK_TOO = bool(os.environ.get("KVRUN_DARK_SCREENSHOTS"))
"""Pictures in dark take as long again, and the rules look at both in any case."""
RULES = """() => {
  const problems = [];
  const seen = (node) => node.getClientRects().length > 0;
  const name = (node) => node.outerHTML.slice(0, 120);
  for (const node of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    if (!node.labels?.length && !node.ariaLabel) problems.push(`no label: ${name(node)}`);
  }
  for (const node of document.querySelectorAll("a[href], button, summary")) {
    if (seen(node) && !node.textContent.trim() && !node.ariaLabel) problems.push(
      `no name: ${name(node)}`);
  }
  if (document.querySelectorAll("h1").length !== 1) problems.push("not one h1");
  if (document.querySelectorAll("main").length !== 1) problems.push("not one main");
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  if (new Set(ids).size !== ids.length) problems.push(`ids twice: ${ids}`);
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) problems.push(`scrolls ${wide}px to the side`);
  const light = (text) => {
    const [r, g, b, a] = text.match(/[\\d.]+/g).map(Number);
    const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return { l: 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b), a: a ?? 1 };
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const found = light(getComputedStyle(node).backgroundColor);
      if (found.a === 1) return found.l;
    }
    return 1;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(node) || node.closest("[disabled]")) continue;
    const style = getComputedStyle(node);
    if (style.visibility === "hidden" || style.opacity !== "1") continue;
    const [a, b] = [light(style.color).l, ground(node)].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24;
    if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) {
      problems.push(`contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)}: ${name(node)}`);
    }
  }
  return problems;
}"""


@dataclass
class Stage:
    """A served control plane with one workspace."""

    services: Services
    url: str
    link: Path
    workspace_id: str

    def owner_link(self) -> str:
        """A new one-time token."""
        return write_owner_link(self.link)

    def until(self, deployment_id: str, state: DeploymentState) -> Deployment:
        """Wait until supervision has led there."""
        deadline = time.monotonic() + 60
        while (found := self.services.deployments.get(deployment_id)).state is not state:
            assert time.monotonic() < deadline, (found.state, found.reason)
            time.sleep(0.05)
        return found

    def users(self, deployment: Deployment) -> Users:
        """What plays gateway and engine of a running deployment."""
        return Users(cast(Rig, SimpleNamespace(deployments=self.services.deployments)), deployment)


@dataclass
class Tab:
    """A browser tab in which nothing may go wrong unseen."""

    page: Page
    stage: Stage
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("request", self._asked)

    def open(self, path: str) -> None:
        """Load a page of the console."""
        self.page.goto(self.stage.url + path)

    def keep(self, name: str) -> None:
        """Check the page at both widths, in light and dark, and keep pictures of it."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        for width, pixels in WIDTHS.items():
            self.page.set_viewport_size({"width": pixels, "height": 900})
            for scheme, ending in (("dark", "-dark"), ("light", "")):
                self.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                found = self.page.evaluate(RULES)
                assert found == [], f"{name} at {pixels}px in {scheme}: {found}"
                if not ending or DARK_TOO:
                    file = SCREENSHOTS / f"{name}-{width}{ending}.png"
                    self.page.screenshot(path=file, full_page=True, animations="disabled")

    def _said(self, message: object) -> None:
        kind, text = getattr(message, "type", ""), getattr(message, "text", "")
        # A refused form is an answer like another; the browser notes its status.
        if kind in ("error", "warning") and "status of 4" not in text:
            self.problems.append(f"{kind}: {text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(self.stage.url):
            self.problems.append(f"foreign request: {request.url}")


def simulated(site: Site) -> list[str]:
    """A daemon alone, in whose place tests play engine and gateway."""
    return [sys.executable, str(DAEMON), str(site.config_file)]


@contextmanager
def open_stage(folder: Path, command: Callable[[Site], list[str]] = simulated) -> Iterator[Stage]:
    """A control plane on a free port, and every process of its deployments ended after it.

    ``command`` runs a deployment.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = (
        f'[control]\nport = {port}\nhome = "{folder}/c"\n'
        f'[instance]\ndata_dir = "{folder}/d"\n[deployment]\nworkspace = "acme"\n'
    )
    config = parse_config(text, {}, source=folder / "kvrun.toml")
    config.layout.data_dir.mkdir(mode=0o700, parents=True)
    other = WatchedLauncher()
    launchers: dict[LauncherKind, Launcher] = {
        LauncherKind.LOCAL: LocalLauncher(command=command),
        LauncherKind.ATTACHED: other,
        LauncherKind.OWN: other,
    }
    services = open_services(config, launchers=launchers)
    app = create_app(services)
    console.mount(app, services)
    server = uvicorn.Server(
        uvicorn.Config(
            app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    workspace = services.accounts.ensure_workspace("acme")
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield Stage(services, f"http://127.0.0.1:{port}", config.layout.owner_link, workspace.id)
    finally:
        living = services.deployments.list()
        for deployment in services.deployments.list(deleted=False):
            if deployment.launcher is LauncherKind.LOCAL and command is not simulated:
                with suppress(WrongStateError):
                    services.deployments.stop(deployment.id, wait_s=120)
        server.should_exit = True
        thread.join(timeout=30)
        for deployment in living:
            end_all(deployment)


@contextmanager
def open_tab(browser: Browser, stage: Stage) -> Iterator[Tab]:
    """A tab whose problems fail the test at its end."""
    context: BrowserContext = browser.new_context(
        viewport={"width": 1440, "height": 900},
        timezone_id="Europe/Berlin",
        locale="en-GB",
        reduced_motion="reduce",
    )
    tab = Tab(context.new_page(), stage)
    try:
        yield tab
        assert tab.problems == []
    finally:
        context.close()


def deployment_id_of(url: str) -> str:
    """The deployment of a page's address."""
    found = re.search(r"/deployments/([^/?]+)", url)
    assert found is not None, url
    return found[1]
