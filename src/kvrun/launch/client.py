"""A streaming OpenAI-style client that times the first token; standard library only."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvrun.errors import KvrunError
from kvrun.launch.readiness import connect

_TIMEOUT_S = 600.0


class RequestFailedError(KvrunError):
    """The gateway answered with an error."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One streamed answer. ``ttft_s`` is from sending to the first token."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    request_id: str


def complete(
    url: str,
    key: str,
    model: str,
    prompt: str | list[int],
    *,
    tenant: str,
    max_tokens: int,
    headers: Mapping[str, str] | None = None,
    fields: Mapping[str, object] | None = None,
    session: str | None = None,
) -> Completion:
    """Stream one completion of exactly ``max_tokens`` tokens for a tenant's session.

    ``url`` is ``http://host:port`` or ``unix:/path``; ``prompt`` is text or token ids. An empty
    ``key`` or ``tenant`` is not sent. ``headers`` and ``fields`` of the body are sent besides.

    Raises:
        RequestFailedError: any status but 200.
    """
    body = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **(fields or {}),
        }
    )
    sent = {"Content-Type": "application/json", **(headers or {})}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    if tenant:
        sent["X-KV-Tenant"] = tenant
    if session is not None:
        sent["X-KV-Session"] = session
    connection = connect(url, _TIMEOUT_S)
    try:
        began = time.monotonic()
        connection.request("POST", "/v1/completions", body, sent)
        response = connection.getresponse()
        if response.status != 200:
            raise RequestFailedError(
                f"the gateway answered {response.status}: {response.read(2000).decode()}"
            )
        return _read_stream(response, began)
    finally:
        connection.close()


def _read_stream(response: http.client.HTTPResponse, began: float) -> Completion:
    text, first = "", 0.0
    usage: dict[str, Any] = {}
    for line in response:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        chunk = json.loads(line[6:])
        for choice in chunk.get("choices", ()):
            first = first or time.monotonic() - began
            text += choice.get("text") or ""
        usage = chunk.get("usage") or usage
    details = usage.get("prompt_tokens_details") or {}
    return Completion(
        text=text,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=details.get("cached_tokens") or 0,
        ttft_s=first,
        request_id=response.headers.get("X-KV-Request-Id", ""),
    )
