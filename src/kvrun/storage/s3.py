"""A boto3 client for the store that obstore's options and environment name.

For what obstore cannot ask: Object Lock and where a bucket is. obstore reads AWS_* of the
environment, and its options go before them; boto3 knows other names. Needs ``kvrun[aws]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import environ
from typing import Any

REACHING = (
    "storage.options, or AWS_ENDPOINT, AWS_REGION and AWS_ACCESS_KEY_ID of the environment, say"
    " where it is and how it is reached."
)
"""A hint for a store that does not answer, or does not know who asks."""


def s3_client(
    bucket: str,
    options: Mapping[str, str],
    *,
    timeout_s: float,
    attempts: int,
    aws_region: str | None = None,
) -> Any:
    """A client that reaches ``bucket`` where obstore reaches it, as whom obstore does.

    ``timeout_s`` bounds a connect and a read in each of ``attempts``. ``aws_region``: where AWS
    itself is asked; a store with an endpoint is asked in its own region.

    Raises ImportError without boto3, ValueError or BotoCoreError for options that cannot be used.
    """
    import boto3
    from botocore.config import Config

    given = _named(options)
    around = _named({name: value for name, value in environ.items() if name.startswith("AWS_")})
    both = {**around, **given}
    virtual = both.get("virtual_hosted_style_request", "").lower() in ("1", "true", "on", "yes")
    endpoint = both.get("endpoint_url_s3") or _endpoint(given) or _endpoint(around)
    if endpoint and virtual:
        # obstore's endpoint has the bucket in it then, and boto3 puts it there itself.
        endpoint = endpoint.replace(f"://{bucket}.", "://", 1)
    if endpoint or aws_region is None:
        aws_region = (
            given.get("region")
            or around.get("region")
            or given.get("default_region")
            or around.get("default_region")
        )
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=aws_region,
        # Those of the environment are boto3's to find: a pair may come with a session token.
        aws_access_key_id=given.get("access_key_id"),
        aws_secret_access_key=given.get("secret_access_key"),
        aws_session_token=given.get("session_token") or given.get("token"),
        config=Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            s3={"addressing_style": "virtual" if virtual else "path"},
        ),
    )


def _named(values: Mapping[str, str]) -> dict[str, str]:
    """Options by the shortest name that obstore knows for them."""
    return {name.lower().removeprefix("aws_"): value for name, value in values.items()}


def _endpoint(named: Mapping[str, str]) -> str | None:
    return named.get("endpoint") or named.get("endpoint_url")
