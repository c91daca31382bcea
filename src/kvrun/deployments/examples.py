"""Requests to copy from a deployment's page. Pure."""

from __future__ import annotations

import json
import shlex

from kvrun.config import KvrunConfig
from kvrun.config.gateway import GatewaySettings

_PROMPT = "Water boils at"
_KEY = "YOUR_API_KEY"


def model_name(config: KvrunConfig) -> str:
    """The name that clients put in ``model``."""
    deployment = config.deployment
    if deployment.served_model_name:
        return deployment.served_model_name
    if deployment.model.startswith(("/", "./", "../", "~")):
        # A folder is served under its name, not its path.
        return deployment.model.rstrip("/").rpartition("/")[2]
    return deployment.model


def curl(endpoint: str, model: str, gateway: GatewaySettings) -> str:
    """One completion with curl."""
    body = json.dumps({"model": model, "prompt": _PROMPT, "max_tokens": 16}, ensure_ascii=False)
    lines = [f"curl {shlex.quote(f'{endpoint}/v1/completions')}"]
    if gateway.require_auth:
        lines.append(f"-H 'Authorization: Bearer {_KEY}'")
    if gateway.tenant_source.kind == "header":
        lines.append(f"-H {shlex.quote(f'{gateway.tenant_header}: alice')}")
    lines += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(body)}"]
    return " \\\n  ".join(lines)


def python(endpoint: str, model: str, gateway: GatewaySettings) -> str:
    """One completion with OpenAI's client."""
    key = _KEY if gateway.require_auth else "none"
    headers = ""
    if gateway.tenant_source.kind == "header":
        headers = f"    extra_headers={{{gateway.tenant_header!r}: 'alice'}},\n"
    return (
        "from openai import OpenAI\n\n"
        f"client = OpenAI(base_url={f'{endpoint}/v1'!r}, api_key={key!r})\n"
        "answer = client.completions.create(\n"
        f"    model={model!r},\n"
        f"    prompt={_PROMPT!r},\n"
        "    max_tokens=16,\n"
        f"{headers}"
        ")\n"
        "print(answer.choices[0].text)\n"
    )
