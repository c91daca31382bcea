"""The typed configuration: one file (``kvrun.toml``), one class a section."""

from kvrun.config.document import KvrunConfig
from kvrun.config.errors import ConfigError
from kvrun.config.layout import DataLayout
from kvrun.config.load import DEFAULT_FILE, load_config, parse_config

__all__ = [
    "DEFAULT_FILE",
    "ConfigError",
    "DataLayout",
    "KvrunConfig",
    "load_config",
    "parse_config",
]
