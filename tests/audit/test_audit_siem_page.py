"""The snippets of docs/siem.md parse, name the log's real files, and connect their parts."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import yaml

from kvrun.audit.record import MAX_LINE_BYTES
from kvrun.audit.segment import manifest_path, segment_name
from kvrun.cli.audit import app

PAGE = (Path(__file__).parents[2] / "docs/siem.md").read_text()
VECTOR = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
FLUENT_BIT = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
SEGMENT = Path("/var/lib/kvrun/audit") / segment_name(12345)


def test_vector_connects_a_source_to_a_sink() -> None:
    assert len(VECTOR) == 2
    for config in VECTOR:
        assert set(config) <= {"sources", "transforms", "sinks"}
        parts = {**config["sources"], **config.get("transforms", {})}
        used = [
            name
            for part in (*config.get("transforms", {}).values(), *config["sinks"].values())
            for name in part["inputs"]
        ]
        assert sorted(used) == sorted(parts)
        assert all(part["type"] for part in (*parts.values(), *config["sinks"].values()))


def test_vector_reads_the_segments_whole_and_nothing_else() -> None:
    source = VECTOR[0]["sources"]["kvrun_audit"]
    assert fnmatch(str(SEGMENT), source["include"][0])
    assert not fnmatch(str(manifest_path(SEGMENT)), source["include"][0])
    assert source["max_line_bytes"] > MAX_LINE_BYTES


def test_vector_runs_a_command_that_exists() -> None:
    command = VECTOR[1]["sources"]["kvrun_ocsf"]["command"]
    assert command[:2] == ["kvrun", "audit"]
    names = {item.name or item.callback.__name__ for item in app.registered_commands}
    assert command[2] in names


def test_fluent_bit_reads_the_segments_with_a_parser_of_its_own() -> None:
    (config,) = FLUENT_BIT
    (tail,), (output,) = config["pipeline"]["inputs"], config["pipeline"]["outputs"]
    assert fnmatch(str(SEGMENT), tail["path"])
    assert tail["parser"] in [parser["name"] for parser in config["parsers"]]
    assert output["match"] == tail["tag"]
