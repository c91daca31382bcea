"""docs/identity.md lists every metric of the gateway, and no other."""

import re
from pathlib import Path

from kvrun.gateway.metrics import GatewayMetrics

PAGE = (Path(__file__).parents[2] / "docs/identity.md").read_text(encoding="utf-8")


def test_the_page_lists_every_metric() -> None:
    listed = set(re.findall(r"^\| `(kvrun_gateway_\w+)` \|", PAGE, re.MULTILINE))
    families = GatewayMetrics().registry.collect()
    assert listed == {
        family.name + ("_total" if family.type == "counter" else "") for family in families
    }
