"""One bounded HTTP POST to a party that is not trusted: a deadline, a size limit, no redirect."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from kvrun.control.witness_errors import WitnessUnavailableError


@dataclass(frozen=True, slots=True)
class Answer:
    """The status, the media type in lower case without parameters, and the body."""

    status: int
    media_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """``timeout_s`` counts from the call to the body's last byte. ``ca_file``: own authorities."""

    timeout_s: float
    max_bytes: int
    ca_file: Path | None = None


def post(
    url: str,
    body: bytes,
    media_type: str,
    limits: HttpLimits,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send ``body`` and read the answer. Blocks; must not be called in a running event loop.

    Raises WitnessUnavailableError for anything but a whole answer within the limits.
    """
    try:
        return asyncio.run(_post(url, body, media_type, limits, headers or {}))
    except TimeoutError:
        raise WitnessUnavailableError(
            f"{url} gave no whole answer within {limits.timeout_s:g} s"
        ) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise WitnessUnavailableError(f"{url} cannot be asked: {error}") from None


async def _post(
    url: str, body: bytes, media_type: str, limits: HttpLimits, headers: Mapping[str, str]
) -> Answer:
    context: ssl.SSLContext | bool = True
    if limits.ca_file is not None and url.startswith("https:"):
        context = ssl.create_default_context(cafile=str(limits.ca_file))
    timeout = aiohttp.ClientTimeout(total=limits.timeout_s)
    async with (
        aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
        session.post(
            url,
            data=body,
            headers={"Content-Type": media_type, "Accept-Encoding": "identity", **headers},
            allow_redirects=False,
            ssl=context,
        ) as answer,
    ):
        content = bytearray()
        async for chunk in answer.content.iter_any():
            content += chunk
            if len(content) > limits.max_bytes:
                raise WitnessUnavailableError(
                    f"{url} answered with more than {limits.max_bytes} bytes"
                )
        return Answer(answer.status, answer.content_type.lower(), bytes(content))
