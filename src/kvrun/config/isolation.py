"""``[isolation]``: how often the control plane tests its deployments by itself."""

from pydantic import field_validator

from kvrun.config.values import Section, setting

_HOUR_S = 3600
_YEAR_S = 365 * 86_400


class IsolationSection(Section):
    """Isolation self-tests on a schedule; the control plane's own configuration counts."""

    every_s: int = setting(
        0,
        "Seconds between two isolation self-tests of each deployment that runs, at least 3600; 0: "
        "only when somebody asks for one. Each sends about a hundred requests.",
        ge=0,
        le=_YEAR_S,
    )

    @field_validator("every_s")
    @classmethod
    def _not_all_the_time(cls, value: int) -> int:
        if 0 < value < _HOUR_S:
            raise ValueError(f"must be 0 or at least {_HOUR_S}, not {value}")
        return value
