"""Policies that the tests here share, and Git repositories that hold them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from kvrun.policy.revision import Revision, parse_revision

EU = """\
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata:
  name: eu
match:
  classes: [eu]
allow:
  tiers: [gpu, memory, disk, object]
  regions: ["eu-*"]
  ttl: 7d
reason: contract with EU customers
tests:
  - name: never in America
    tenant: {class: eu}
    instance_region: eu-west-1
    tier: object
    region: us-east-1
    expect: deny
  - tenant: {class: eu}
    instance_region: eu-west-1
    tier: disk
    expect: allow
"""
US = """\
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata:
  name: us
match:
  classes: [us]
allow:
  tiers: [gpu, memory]
  regions: ["us-*"]
"""


def revision(*texts: str) -> Revision:
    """A revision with one file a text."""
    files = {f"policies/p{n}.yaml": text.encode() for n, text in enumerate(texts)}
    return parse_revision(files, "test")


class Repository:
    """A real Git repository with a work tree, and the keys that sign its commits."""

    def __init__(self, folder: Path, *, make: bool = True) -> None:
        self.folder = folder
        if not make:
            return
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, check: bool = True) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "Ada",
            "GIT_AUTHOR_EMAIL": "ada@example.com",
            "GIT_COMMITTER_NAME": "Ada",
            "GIT_COMMITTER_EMAIL": "ada@example.com",
        }
        done = subprocess.run(
            ["git", "-C", str(self.folder), *arguments],
            env=environment,
            capture_output=True,
            check=check,
        )
        return done.stdout.decode().strip()

    def mktree(self, file: str) -> str:
        """The tree of the lines in a file, as ``git mktree`` reads them."""
        environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
        with (self.folder / file).open("rb") as lines:
            done = subprocess.run(
                ["git", "-C", str(self.folder), "mktree"],
                env=environment,
                stdin=lines,
                capture_output=True,
                check=True,
            )
        return done.stdout.decode().strip()

    def commit(
        self, files: dict[str, str | bytes | None], *, key: Path | None = None, amend: bool = False
    ) -> str:
        """Commit these files (None removes one) in ``policies``; the commit."""
        for name, content in files.items():
            path = self.folder / "policies" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(content)
        self.git("add", "-A")
        signing = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={key}") if key else ()
        options = ["--quiet", "--allow-empty", "-m", f"Change {', '.join(files)}"]
        options += ["--amend"] if amend else []
        options += ["-S"] if key else []
        self.git(*signing, "commit", *options)
        return self.git("rev-parse", "HEAD")


def make_key(folder: Path, name: str) -> Path:
    """A new SSH key pair; its private half."""
    path = folder / name
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)], check=True
    )
    return path


def allow(folder: Path, *keys: Path) -> Path:
    """An allowed_signers file with these keys."""
    path = folder / "allowed_signers"
    lines = [f"{key.name}@example.com {key.with_suffix('.pub').read_text()}" for key in keys]
    path.write_text("".join(lines))
    return path
