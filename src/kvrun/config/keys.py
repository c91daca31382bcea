"""``[keys]``: the root of trust and when session keys are destroyed."""

from typing import Self

from pydantic import field_validator, model_validator

from kvrun.config.values import Section, setting

DAY_S = 86_400


class KeysSection(Section):
    """The key hierarchy's root and limits."""

    root: str = setting(
        "file:root",
        '"file:FOLDER" (relative to data_dir) or "memory" (every key is lost at a restart).',
    )
    idle_timeout_s: int = setting(
        7 * DAY_S, "A session's key unused for this long is destroyed (seconds).", ge=1
    )
    absolute_timeout_s: int = setting(
        30 * DAY_S, "A session's key older than this is destroyed (seconds).", ge=1
    )
    max_sessions_per_tenant: int = setting(
        1000, "Live sessions of one tenant; beyond it requests get 429.", ge=1, le=10_000_000
    )

    @field_validator("root")
    @classmethod
    def _known_root(cls, value: str) -> str:
        if value == "memory" or (value.startswith("file:") and len(value) > len("file:")):
            return value
        raise ValueError('"memory" or "file:PATH"')

    @model_validator(mode="after")
    def _idle_before_absolute(self) -> Self:
        if self.idle_timeout_s > self.absolute_timeout_s:
            raise ValueError(
                f"keys.idle_timeout_s = {self.idle_timeout_s} must not be larger than "
                f"keys.absolute_timeout_s = {self.absolute_timeout_s}"
            )
        return self
