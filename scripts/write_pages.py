"""Write the pages that the code says of itself: ``make pages``.

docs/cli.md, docs/configuration.md, docs/openapi.json, the schema of residency policies, and what
the engines' pages say of their checks.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic_core import PydanticUndefined

from kvrun.api.app import openapi_text
from kvrun.cli.main import app
from kvrun.cli.template import to_toml
from kvrun.config import KvrunConfig
from kvrun.config.schema import Setting, settings
from kvrun.conformance.page import PAGES, with_checks
from kvrun.policy.document import schema_text

DOCS = Path(__file__).parents[1] / "docs"

CLI_HEAD = """# Command line

Every command has `--help` with an example. `--config FILE` (or `KVRUN_CONFIG`) names the
configuration; without it `kvrun.toml` in the current folder is read. `--json` prints one JSON value
for scripts. Errors are text on standard error: what was wrong, then what to do.

| exit status | meaning |
| --- | --- |
| 0 | done; what was checked holds |
| 1 | what was checked does not hold, or the daemon refused |
| 2 | the configuration or an argument is not allowed; `kvrun verify`: a key is self-asserted |
| 3 | something needed is missing or taken: a daemon, a port, a model, an engine |
| 4 | a process of `kvrun up` did not start or ended by itself |
| 130 | `kvrun demo` was interrupted while starting; a `kvrun up` that is told to stop ends with 0 |
"""

CONFIG_HEAD = """# Configuration

`kvrun.toml` configures one deployment. `kvrun init` writes one in which every setting is listed
with its default. `--config FILE` or `KVRUN_CONFIG` names another file.

```toml
[deployment]
name = "chat"
model = "Qwen/Qwen3-0.6B"
context_window = 16000

[instance]
memory_bytes = "8GiB"
disk_bytes = "100GiB"

[gateway]
port = 8000
multi_tenant = true
```

* **The environment wins over the file.** `KVRUN_SECTION__KEY` sets a key:
  `KVRUN_GATEWAY__PORT=8443`, `KVRUN_GATEWAY__JWT__ISSUER=https://login.example.com`. Lists and
  tables are written as in TOML: `KVRUN_ENGINE__EXTRA_ARGS='["--seed", "1"]'`.
* **Sizes** are a number of bytes or text such as `"512MiB"`, `"2GiB"` or `"10GB"`.
* **Relative paths** are taken from the folder of `kvrun.toml`.
* **Every error names the key, the bad value and what is allowed.** An unknown key is an error too,
  with the nearest known one. kvrun does not start with a file that it does not fully understand.

A dash as default means: not set.
"""

SECTION_INTROS = {
    "deployment": "Which model is served, to whom it belongs, and how strictly.",
    "instance": "The daemon of one box: where it keeps data and how much of it.",
    "keys": "The root of the key hierarchy and when session keys are destroyed.",
    "audit": "The append-only audit log, its collection and how long what was collected is kept.",
    "alerts": (
        "Who is told of alerts; [operations.md](operations.md#alerts-by-webhook) says what is sent."
    ),
    "log": "What the processes write about themselves, apart from the audit log.",
    "witness": (
        "Who else remembers the log's checkpoints; several can be set. With none, nobody else "
        "notices when whoever\nholds the machine and the collected logs rewrites them. "
        "[witnesses.md](witnesses.md) says what each one shows."
    ),
    "storage": (
        "The workspace's Storage, for collected logs and certificates. Blocks stay in data_dir."
    ),
    "erasure": "How long an erasure waits for an engine, and which backups there are.",
    "isolation": (
        "How often the control plane tests its deployments by itself; "
        "[operations.md](operations.md#isolation-self-test) says what is tested."
    ),
    "residency": (
        "Which policy decides where context may live, and which regions this deployment uses; "
        "[residency.md](residency.md)\nsays how policies are written and what is enforced."
    ),
    "gateway": (
        "Who may ask, and how a request is assigned to a tenant and a session. `engine_url`, "
        "`instance_socket`,\n`state_dir` and `api_keys_file` follow the other sections while they "
        "are not set."
    ),
    "gateway.jwt": (
        "Needed only where clients carry JSON web tokens. The whole section is optional; without "
        "it no token\nis accepted."
    ),
    "engine": (
        "The engine that `kvrun up` starts. `extra_args` and `env` go to it unchanged, except for "
        "what kvrun\ngoverns: those flags and variables are refused with the reason."
    ),
    "control": (
        "The control plane, with API and console: who may sign in, and where it keeps what it "
        "knows.\nDeployments that it makes are served by processes of their own, which it does not "
        "end when it ends."
    ),
}


def main() -> None:
    """Write the pages."""
    (DOCS / "cli.md").write_text(cli_page(), encoding="utf-8")
    (DOCS / "configuration.md").write_text(configuration_page(), encoding="utf-8")
    (DOCS / "openapi.json").write_text(openapi_text(), encoding="utf-8")
    for name, engines in PAGES.items():
        page = DOCS / name
        page.write_text(with_checks(page.read_text(encoding="utf-8"), engines), encoding="utf-8")
    schema = DOCS / "spec" / "residency-policy.schema.json"
    schema.write_text(schema_text(), encoding="utf-8")


def cli_page() -> str:
    """The manual: each command's help and its arguments."""
    parts = [CLI_HEAD]
    for name, command in _commands(typer.main.get_command(app)):
        text = inspect.cleandoc(command.help or "").replace("\f", "")
        text = re.sub(r"Example: (.*)", r"```sh\n\1\n```", text)
        parts.append(f"## `kvrun {name}`\n\n{text}\n")
        rows = [
            _argument_row(parameter) for parameter in command.params if parameter.name != "help"
        ]
        if rows:
            parts.append("\n".join(["| argument | meaning |", "| --- | --- |", *rows]) + "\n")
    return "\n".join(parts)


def configuration_page() -> str:
    """The settings, a table a section."""
    sections: dict[str, list[Setting]] = {}
    for setting in settings(KvrunConfig):
        sections.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    order = list(sections)
    parts = [CONFIG_HEAD]
    for name in sorted(sections, key=lambda name: order.index(name.split(".")[0])):
        parts.append(f"## `[{name}]`\n\n{SECTION_INTROS[name]}\n")
        rows = [_setting_row(setting) for setting in sections[name]]
        parts.append(
            "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *rows]) + "\n"
        )
    return "\n".join(parts)


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield f"{prefix}{name}", command
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _argument_row(parameter: Any) -> str:
    option = parameter.param_type_name == "option"
    name = ", ".join(parameter.opts) if option else parameter.metavar or parameter.name.upper()
    text = " ".join((getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
    return f"| `{name}` | {text} |"


def _setting_row(setting: Setting) -> str:
    key = setting.key.rpartition(".")[2]
    unset = setting.default is None or setting.default is PydanticUndefined
    default = "-" if unset else f"`{to_toml(key, setting.default)}`"
    return f"| `{key}` | {default} | {setting.description} |"


if __name__ == "__main__":
    main()
