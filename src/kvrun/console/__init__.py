"""The console: what people see of the control plane, made on the server."""

from kvrun.console.app import mount

__all__ = ["mount"]
