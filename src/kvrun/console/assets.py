"""The console's own files: style sheet, scripts and icon, read once and named by their content."""

import hashlib
import mimetypes
from importlib.resources import files

from starlette.responses import Response

_NAMES = ("console.css", "console.js", "htmx.min.js", "htmx-ext-sse.js", "icon.svg")
_FOREVER = "public, max-age=31536000, immutable"


class Assets:
    """The files by name. A change of one changes its address, so browsers may keep it for good."""

    def __init__(self) -> None:
        folder = files("kvrun.console") / "static"
        self._content = {name: (folder / name).read_bytes() for name in _NAMES}
        self._version = {
            name: hashlib.sha256(content).hexdigest()[:12]
            for name, content in self._content.items()
        }

    def address(self, name: str) -> str:
        """Where a page finds the file."""
        return f"/static/{self._version[name]}/{name}"

    def answer(self, version: str, name: str) -> Response | None:
        """The file, or None where there is none of that name and version."""
        if self._version.get(name) != version:
            return None
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(self._content[name], media_type=kind, headers={"Cache-Control": _FOREVER})
