"""The wheel holds all that the checkout has, and works away from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Where the wheel puts what lies elsewhere in the checkout.
PLACES = {
    "src/kvrun/": "kvrun/",
    "docs/spec/": "kvrun/evidence/files/docs/spec/",
    "docs/engine-checks/": "kvrun/engines/checks/",
    "verify/": "kvrun/evidence/files/verify/",
}
USE = """
import kvrun
from kvrun.evidence.statics import static_files

print(kvrun.__file__)
print(*(name for name, _ in static_files()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what Git has, as a fresh clone would."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "out"))
    for path in tracked(*PLACES, "pyproject.toml", "README.md", "LICENSE"):
        target = source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    pip("wheel", "--no-deps", "--wheel-dir", str(out), str(source))
    (built,) = out.glob("kvrun-*.whl")
    return built


def test_every_file_of_the_checkout_is_in_it(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    for place, packed in PLACES.items():
        for path in tracked(place.rstrip("/")):
            assert packed + path.removeprefix(place) in held, path


def test_it_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    pip("install", "--no-deps", "--target", str(installed), str(wheel))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("KVRUN_")},
        "PYTHONPATH": str(installed),
    }

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, check=True,
            capture_output=True, text=True,
        ).stdout  # fmt: skip

    where, carried = run("-c", USE).splitlines()
    assert where.startswith(str(installed)), "another kvrun was used"
    assert "verify/verify.html" in carried.split()
    assert run("-m", "kvrun", "--version").startswith("kvrun ")
    assert "kvk_" in run("-m", "kvrun", "init", "chat", "--model", "tiny")
    assert (tmp_path / "chat/kvrun.toml").is_file()


def tracked(*paths: str) -> list[str]:
    """What Git has of the checkout below some paths; deleted ones left out."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", *paths], check=True, capture_output=True
    ).stdout.decode()
    return [path for path in listed.split("\0") if path and (ROOT / path).is_file()]


def pip(*arguments: str) -> None:
    """Run pip quietly."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)
