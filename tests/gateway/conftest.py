from gateway_rig import engine, gateway, start_gateway

__all__ = ["engine", "gateway", "start_gateway"]
