"""vLLM's plugin entry point: makes ``KvrunConnector`` known by its name alone."""

from __future__ import annotations


def register() -> None:
    """Register the connector; vLLM calls this in every process, maybe more than once."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "KvrunConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(
            "KvrunConnector", "kvrun.engines.vllm.connector", "KvrunConnector"
        )
