"""What people typed into a form, bounded and read into types; what is wrong is kept by field."""

from collections.abc import Iterable, Mapping

from kvrun.config.values import parse_size

MAX_TEXT = 4096


class Form:
    """The fields of one request. ``errors`` names, by field, what was wrong and what is allowed."""

    def __init__(self, values: Mapping[str, str], lists: Mapping[str, list[str]]) -> None:
        self._values, self._lists = values, lists
        self.errors: dict[str, str] = {}

    @property
    def values(self) -> Mapping[str, str]:
        """The fields as they came, to fill the form in again."""
        return self._values

    def text(self, name: str, label: str, *, limit: int = 200, required: bool = False) -> str:
        """One line without control characters, stripped."""
        value = self._values.get(name, "").strip()
        if len(value) > limit:
            self.errors[name] = f"{label} may have {limit} characters at most."
            return ""
        if any(ord(char) < 32 or ord(char) == 127 for char in value):
            self.errors[name] = f"{label} may not hold control characters."
            return ""
        if required and not value:
            self.errors[name] = f"{label} is needed."
        return value

    def reason(self, name: str, label: str) -> str:
        """A few lines that say why; needed."""
        value = " ".join(self._values.get(name, "").split())
        if not value:
            self.errors[name] = f"{label} is needed: it is put on record."
        elif len(value) > MAX_TEXT:
            self.errors[name] = f"{label} may have {MAX_TEXT} characters at most."
            return ""
        return value

    def choice(self, name: str, label: str, allowed: Iterable[str]) -> str:
        """One of what was offered."""
        known = list(allowed)
        value = self._values.get(name, "")
        if value not in known:
            self.errors[name] = f"Choose {label}: {', '.join(known)}."
            return ""
        return value

    def choices(self, name: str, allowed: Iterable[str]) -> list[str]:
        """Those of what was offered that are ticked."""
        known = list(allowed)
        return [value for value in self._lists.get(name, []) if value in known]

    def flag(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self._values.get(name, "") not in ("", "no")

    def number(self, name: str, label: str, lowest: int, highest: int) -> int | None:
        """A whole number, or None where the field is empty."""
        value = self._values.get(name, "").strip().replace(",", "")
        if not value:
            return None
        digits = value.isascii() and value.isdecimal() and len(value) < 19
        if not digits or not lowest <= int(value) <= highest:
            self.errors[name] = f"{label} is a whole number from {lowest:,} to {highest:,}."
            return None
        return int(value)

    def size(self, name: str, label: str) -> int | None:
        """Bytes, such as ``2GiB``, or None where the field is empty."""
        value = self._values.get(name, "").strip()
        if not value:
            return None
        try:
            return parse_size(value[:40])
        except ValueError:
            self.errors[name] = f'{label} is a size such as "512MiB", "2GiB" or "10GB".'
            return None

    def pairs(self, name: str, label: str) -> dict[str, str]:
        """Lines ``name=value``."""
        found: dict[str, str] = {}
        for line in self._values.get(name, "")[:MAX_TEXT].splitlines():
            if not line.strip():
                continue
            key, equals, value = line.partition("=")
            if not equals or not key.strip():
                self.errors[name] = f"{label} are lines like name=value; {line[:40]!r} is not."
                return {}
            found[key.strip()] = value.strip()
        return found
