"""kvrun.toml: what is read, from where, and what a wrong one is answered with."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.config import ConfigError, KvrunConfig, load_config, parse_config
from kvrun.config.values import format_size, parse_size

FOLDER = Path("/srv/kv")


def parse(text: str = "", **environ: str) -> KvrunConfig:
    return parse_config(text, environ, source=FOLDER / "kvrun.toml")


def problem(text: str = "", **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, **environ)
    assert caught.value.exit_code == 2
    return caught.value.diagnostics()


def test_no_deployment_has_the_name_that_the_control_plane_has_in_logs() -> None:
    said = problem('[deployment]\nname = "control"\n')
    assert "deployment.name" in said
    assert "choose another name" in said
    assert parse('[deployment]\nname = "controls"\n').deployment.name == "controls"


def test_an_empty_file_is_a_complete_configuration_rooted_in_its_folder() -> None:
    config = parse()
    assert config.instance.data_dir == FOLDER / "kvrun-data"
    assert config.instance_socket == FOLDER / "kvrun-data/run/instance.sock"
    assert config.gateway.engine_url == "unix:/srv/kv/kvrun-data/run/engine.sock"
    assert config.gateway.api_keys_file == FOLDER / "kvrun-data/api_keys.json"
    assert config.gateway.host == "127.0.0.1"
    assert config.gateway.require_auth


def test_the_gateway_follows_the_engine_to_its_loopback_port() -> None:
    assert (
        parse('[engine]\ntransport = "tcp"\nport = 8111').gateway.engine_url
        == "http://127.0.0.1:8111"
    )
    own = parse('[gateway]\nengine_url = "http://127.0.0.1:9"\n')
    assert own.gateway.engine_url == "http://127.0.0.1:9"


def test_an_environment_variable_wins_over_the_file() -> None:
    config = parse(
        "[gateway]\nport = 8001\n[engine]\nextra_args = []",
        KVRUN_GATEWAY__PORT="8002",
        KVRUN_INSTANCE__MEMORY_BYTES="2GiB",
        KVRUN_DEPLOYMENT__STATELESS="true",
        KVRUN_ENGINE__EXTRA_ARGS='["--seed", "1"]',
        KVRUN_ENGINE__ENV__OMP_Places="cores",
        KVRUN_TOKEN_FD="7",
    )
    assert config.gateway.port == 8002
    assert config.instance.memory_bytes == 2**31
    assert config.deployment.stateless
    assert config.engine.extra_args == ("--seed", "1")
    assert config.engine.env == {"OMP_Places": "cores"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[gateway]\nport = "many"', ["gateway.port", '"many"', "whole number", "at most 65535"]),
        ("[gateway]\nport = 70000", ["gateway.port = 70000", "at most 65535"]),
        ("[gateway]\nprot = 1", ["gateway.prot is not a known setting", "gateway.port?"]),
        ("[gatway]\nport = 1", ["gatway is not a known section", "did you mean gateway?"]),
        ("[keys]\nzzzzzz = 1", ["keys.zzzzzz", "allowed in keys:", "idle_timeout_s"]),
        ('[instance]\nmemory_bytes = "2 gigs"', ["instance.memory_bytes", '"2 gigs"', '"2GiB"']),
        ("[instance]\nsealing_threads = 0", ["instance.sealing_threads = 0", "at least 1"]),
        ('[audit]\nmode = "off"', ["audit.mode", '"off"', "require", "best_effort"]),
        ('[keys]\nroot = "vault"', ["keys.root", '"vault"', "memory", "file:PATH"]),
        ("[keys]\nidle_timeout_s = 9999999", ["keys.idle_timeout_s = 9999999", "2592000"]),
        ('[deployment]\nname = "a b"', ["deployment.name", '"a b"']),
        ("[deployment]\nstateless = 3", ["deployment.stateless = 3", "true or false"]),
        ('[gateway]\nhost = "0.0.0.0"', ["[gateway]", "tls_cert", "behind_proxy"]),
        (
            '[storage]\nobject_lock = "compliance"',
            ["[storage]", '"compliance"', "s3://BUCKET/PREFIX", "a folder holds nothing"],
        ),
        (
            '[storage]\nobject_lock = "compliance"\nurl = "gs://b/p"',
            ["[storage]", '"compliance"', "gs://b/p holds nothing", '"governance"'],
        ),
        (
            '[storage]\nobject_lock = "compliance"\nurl = "s3://b/p"\n[audit]\nretention_days = 0',
            ['"compliance"', "audit.retention_days", "at least 1"],
        ),
        ("[witness]\nurls = [1]", ["witness.urls", "1"]),
        ("[witness]\nurls = []\nkeys_file = 'k'", ["[witness]", "urls and keys_file belong"]),
        ("[witness]\nurls = ['https://w']", ["[witness]", "urls and keys_file belong"]),
        (
            "[witness]\nkeys_file = 'k'\nurls = ['http://w.example/']",
            ["witness.urls", "'http://w.example/'", "https, or http on a loopback"],
        ),
        ("[witness]\nurls = ['w.example']\nkeys_file = 'k'", ["witness.urls", "https://"]),
        ("[witness]\nurls = ['https://u:p@w']\nkeys_file = 'k'", ["witness.urls", "password"]),
        (
            '[witness]\ngit_remote = "ext::sh -c id"',
            ["witness.git_remote", '"ext::sh -c id"', "HOST:PATH"],
        ),
        ('[witness]\ngit_remote = "-oProxyCommand=x:y"', ["witness.git_remote", "HOST:PATH"]),
        ('[witness]\ngit_branch = "--force"', ["witness.git_branch", '"--force"', "letters"]),
        ('[witness]\ngit_token_file = "t"', ["git_token_file needs a git_remote", "https://"]),
        ('[witness]\ntimestamp_url = "https://t"', ["timestamp_url and timestamp_ca_file"]),
        ("[witness]\ntimeout_s = 0", ["witness.timeout_s = 0", "more than 0"]),
        ("witness = 3", ["witness = 3", "section"]),
        ("gateway = 3", ["gateway = 3", "section"]),
        ("[engine]\nenv = 3", ["engine.env = 3", "table"]),
        ("[engine", ["not valid TOML"]),
    ],
)
def test_every_error_names_the_key_the_value_and_what_is_allowed(
    text: str, expected: list[str]
) -> None:
    message = problem(text)
    assert "/srv/kv/kvrun.toml" in message
    for part in expected:
        assert part in message


def test_witnesses_are_none_unless_they_are_set() -> None:
    assert parse().witness.names == ()
    config = parse(
        """[witness]
        urls = ["https://w.example/kvrun", "http://127.0.0.1:8470"]
        keys_file = "witnesses.vkey"
        git_remote = "git@git.example:audit/checkpoints.git"
        timestamp_url = "http://tsa.example/tsr"
        timestamp_ca_file = "/etc/tsa.pem"
        """
    )
    assert config.witness.keys_file == FOLDER / "witnesses.vkey"
    assert config.witness.names == (
        "w.example",
        "127.0.0.1:8470",
        "git git@git.example:audit/checkpoints.git",
        "timestamps of tsa.example",
    )


def test_an_error_from_the_environment_names_the_variable() -> None:
    message = problem(KVRUN_GATEWAY__PORT="x", KVRUN_KEYS__MAXX="1")
    assert "KVRUN_GATEWAY__PORT: gateway.port" in message
    assert "KVRUN_KEYS__MAXX: keys.maxx is not a known setting" in message
    assert "kvrun.toml" not in message


def test_all_problems_are_named_at_once() -> None:
    message = problem("[gateway]\nport = -1\n[instance]\nsealing_threads = 100")
    assert "gateway.port = -1" in message
    assert "instance.sealing_threads = 100" in message


def test_a_data_folder_too_deep_for_its_sockets_is_refused() -> None:
    message = problem(f'[instance]\ndata_dir = "/{"d" * 120}"')
    assert "instance.data_dir" in message
    assert "107" in message


def test_a_missing_file_and_an_unreadable_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as caught:
        load_config(tmp_path / "kvrun.toml", {})
    assert "kvrun init" in caught.value.diagnostics()
    (tmp_path / "kvrun.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "kvrun.toml", {})


@given(st.integers(min_value=0, max_value=2**60))
def test_a_size_survives_being_written_and_read(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("1.5 kib", 1536), ("10GB", 10**10), ("7", 7), (7, 7), ("0b", 0)],
)
def test_sizes_take_decimal_and_binary_units(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.5", "0.3B", "1e9", True, 1.5, "2 gigs"])
def test_other_sizes_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="a size is"):
        parse_size(text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('repository = "ext::sh -c id"', "must be https://"),
        ('repository = "-oProxyCommand=id:x"', "must be https://"),
        ('repository = "policies"', "must be https://"),
        ('repository = "http://git.example/p.git"', "must be https, ssh or a folder"),
        ('repository = "https://me:secret@git.example/p.git"', "must not contain a password"),
        ('repository = "/srv/policies"\ntoken_file = "t"', "starts with https://"),
        ('repository = "git@git.example:p.git"\ntoken_file = "t"', "starts with https://"),
    ],
)
def test_a_policy_repository_is_reached_safely_or_not_at_all(settings, said):
    with pytest.raises(ConfigError) as error:
        parse(f"[residency]\n{settings}")
    assert said in error.value.diagnostics()


@pytest.mark.parametrize(
    "settings",
    [
        'repository = "/srv/policies"',
        'repository = "git@git.example:p.git"',
        'repository = "ssh://git.example/p.git"',
        'repository = "https://git.example/p.git"\ntoken_file = "t"',
    ],
)
def test_a_policy_repository_over_tls_ssh_or_in_a_folder_is_taken(settings):
    assert parse(f"[residency]\n{settings}").residency.repository
