"""Key roots on a filesystem that the test chooses, whatever is under it."""

import pytest

from kvrun.keys import open_root
from kvrun.keys.filesystem import ClaimClass, FilesystemFacts


def pretend_filesystem(monkeypatch: pytest.MonkeyPatch, claim: ClaimClass) -> None:
    """Whoever looks at a root before it is opened finds a filesystem with this claim class."""
    facts = FilesystemFacts("testfs", "/", claim, "testfs is made up")
    monkeypatch.setattr(open_root, "filesystem_facts", lambda path: facts)
