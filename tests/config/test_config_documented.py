"""docs/configuration.md and the file that ``kvrun init`` writes say what the code does."""

import tomllib
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from kvrun.cli.template import render
from kvrun.config import KvrunConfig, parse_config
from kvrun.config.schema import Setting, settings

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
SETTINGS = list(settings(KvrunConfig))


def _section(name: str) -> str:
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## `[{name}]`\n")
    assert found, f"docs/configuration.md has no section [{name}]"
    return rest.split("\n## ")[0]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_is_documented_as_it_describes_itself(setting: Setting) -> None:
    section, _, key = setting.key.rpartition(".")
    assert setting.description, f"{setting.key} has no description"
    rows = [line for line in _section(section).splitlines() if line.startswith(f"| `{key}` |")]
    assert len(rows) == 1
    assert rows[0].endswith(f"| {setting.description} |")


def test_the_page_documents_nothing_that_does_not_exist() -> None:
    documented = [
        line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")
    ]
    assert sorted(documented) == sorted(setting.key.rpartition(".")[2] for setting in SETTINGS)


def test_the_examples_of_the_page_are_valid() -> None:
    example = PAGE.read_text().split("```toml\n")[1].split("```")[0]
    config = parse_config(example, {}, source=Path("/srv/kvrun.toml"))
    assert config.deployment.name == "chat"
    assert config.instance.memory_bytes == 8 * 2**30


def test_the_written_file_means_the_defaults_and_lists_every_setting() -> None:
    text = render({"gateway.port": 8001})
    config = parse_config(text, {}, source=Path("/srv/kvrun.toml"))
    plain = parse_config("[gateway]\nport = 8001", {}, source=Path("/srv/kvrun.toml"))
    assert config == plain
    for setting in SETTINGS:
        assert f"{setting.key.rpartition('.')[2]} = " in text


def test_the_written_file_with_every_comment_removed_is_still_toml() -> None:
    lines = render({}).splitlines()
    active = [
        line.removeprefix("# ") for line in lines if " = " in line or line.startswith(("[", "# ["))
    ]
    document = tomllib.loads("\n".join(line for line in active if not line.startswith("kvrun")))
    assert set(document) == set(KvrunConfig.model_fields)


@pytest.mark.parametrize(
    "setting",
    [
        setting
        for setting in SETTINGS
        if setting.key.startswith("gateway.") and setting.default not in (None, PydanticUndefined)
    ],
    ids=lambda setting: setting.key,
)
def test_a_default_of_the_gateway_is_accepted_as_it_is_written(setting: Setting) -> None:
    line = next(
        line.removeprefix("# ")
        for line in render({}).splitlines()
        if line.startswith(f"# {setting.key.rpartition('.')[2]} = ")
    )
    section = setting.key.rpartition(".")[0]
    jwt = '[gateway.jwt]\nissuer = "i"\naudience = "a"\njwks_file = "k"\n'
    parse_config(
        jwt + line if section == "gateway.jwt" else f"[{section}]\n{line}\n",
        {},
        source=Path("/srv/kvrun.toml"),
    )
