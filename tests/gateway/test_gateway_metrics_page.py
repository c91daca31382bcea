"""docs/identity.md lists every metric of the gateway, and no other."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway_rig import Gateway

from kvrun.gateway.metrics import GatewayMetrics

PAGE = (Path(__file__).parents[2] / "docs/identity.md").read_text(encoding="utf-8")


def test_the_page_lists_every_metric() -> None:
    listed = set(re.findall(r"^\| `(kvrun_gateway_\w+)` \|", PAGE, re.MULTILINE))
    families = GatewayMetrics().registry.collect()
    assert listed == {
        family.name + ("_total" if family.type == "counter" else "") for family in families
    }


async def test_readiness_is_health_and_every_metric_says_whose_gateway_it_is(
    start_gateway: Callable[..., Awaitable[Gateway]],
) -> None:
    gateway = await start_gateway(labels={"workspace": "w1", "deployment": "chat"})
    for path in ("/healthz", "/readyz"):
        async with gateway.client.get(gateway.url + path) as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok", "cache": "ok"})
    async with gateway.client.get(gateway.url + "/metrics") as answer:
        samples = [line for line in (await answer.text()).splitlines() if line[0] != "#"]
    assert samples
    assert all('deployment="chat"' in line and 'workspace="w1"' in line for line in samples)
