"""``kvrun init``: a new deployment's configuration, folders and first credentials."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from kvrun.cli.options import console
from kvrun.cli.root_probe import warning_before_start
from kvrun.cli.template import render
from kvrun.cli.witness_choice import ask_for_witness, witness_line, witness_settings
from kvrun.config import DEFAULT_FILE, DataLayout, KvrunConfig, load_config
from kvrun.config.roots import FileAddress
from kvrun.durable import write_private_file
from kvrun.errors import KvrunError
from kvrun.gateway.apikeys import ApiKeyRecord, hash_api_key, make_api_key, save_api_keys
from kvrun.keys.root_place import file_root_folder
from kvrun.launch.engines import usual_engine

FIRST_KEY_ID = "first"


class InitError(KvrunError):
    """The folder holds a deployment already, or cannot be written."""

    exit_code = 2


def init(
    folder: Annotated[Path, typer.Argument(help="Folder for kvrun.toml.")] = Path(),
    model: Annotated[str, typer.Option(help='Folder, Hugging Face id, "demo" or "tiny".')] = "demo",
    name: Annotated[str, typer.Option(help="Name of the deployment.")] = "default",
    workspace: Annotated[str, typer.Option(help="Workspace that owns it.")] = "default",
    engine: Annotated[
        str | None,
        typer.Option(help="vllm or llama.cpp; unset: llama.cpp where only that is installed."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the gateway.")] = 8000,
    witness: Annotated[
        str | None,
        typer.Option(
            help="Who else remembers the audit log: none, https://HOST, git:FOLDER, git:URL or "
            "timestamp:URL; asked for at a terminal."
        ),
    ] = None,
    witness_key: Annotated[
        Path | None,
        typer.Option(help="File with the witness's verifier key or the authority's root."),
    ] = None,
) -> None:
    """Write kvrun.toml, make the data folder, and print the first API key once.

    An existing kvrun.toml or key file is never overwritten.

    Example: kvrun init chat --model Qwen/Qwen3-0.6B
    """
    if witness is None:
        witness, witness_key = ask_for_witness()
    chosen = witness_settings(witness, witness_key)
    if (kind := engine or usual_engine("vllm", "llama.cpp")) != "vllm":
        chosen = {"engine.kind": kind, **chosen}
    config, key = create(
        folder, model=model, name=name, workspace=workspace, port=port, more=chosen
    )
    out = console()
    out.print(
        f"wrote {folder / DEFAULT_FILE} and {config.instance.data_dir}",
        soft_wrap=True,
    )
    out.print(f"\nFirst API key, shown this once:\n\n  {key}\n", soft_wrap=True)
    out.print(witness_line(config) + "\n", soft_wrap=True)
    address = config.keys.root_address
    if isinstance(address, FileAddress):
        root = file_root_folder(address, config.instance.data_dir)
        out.print(
            f"Key root: {root}, made at the first start. Never back it up: a copy brings erased "
            f"keys back. Of {config.instance.data_dir} backups may be made.\n",
            soft_wrap=True,
        )
    if warning := warning_before_start(config):
        out.print(warning + "\n", soft_wrap=True)
    out.print(
        f"One-time owner link token: in {config.layout.owner_link} (only you can read it)\n"
        f"Next: cd {folder} && kvrun doctor && kvrun up",
        soft_wrap=True,
    )


def create(
    folder: Path,
    *,
    model: str,
    name: str,
    workspace: str,
    port: int,
    more: Mapping[str, object] = MappingProxyType({}),
) -> tuple[KvrunConfig, str]:
    """Make the deployment; its configuration and the first API key's text.

    ``more``: further settings (dotted keys).

    Raises InitError when one is there already or the folder cannot be written, ConfigError for
    values that are not allowed (nothing is left behind then).
    """
    path = folder / DEFAULT_FILE
    if path.exists():
        raise InitError(f"{path} exists already", hint="choose another folder, or edit that file")
    chosen = {
        "deployment.workspace": workspace,
        "deployment.name": name,
        "deployment.model": model,
        "gateway.port": port,
        **more,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_private_file(path, render(chosen).encode())
    except OSError as error:
        raise InitError(
            f"{path} cannot be written: {error.strerror}", hint="choose a folder that you can write"
        ) from None
    try:
        config = load_config(path, {})
        return config, _credentials(config.layout)
    except KvrunError:
        path.unlink()
        raise


def _credentials(layout: DataLayout) -> str:
    if layout.api_keys.exists():
        raise InitError(
            f"{layout.api_keys} exists already: another deployment uses this data folder",
            hint="choose another folder, or move the old data away",
        )
    try:
        for part in (layout.data_dir, layout.run, layout.logs):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.chmod(0o700)
        key = make_api_key(os.urandom(32))
        save_api_keys(layout.api_keys, [ApiKeyRecord(id=FIRST_KEY_ID, sha256=hash_api_key(key))])
        write_private_file(layout.owner_link, f"{secrets.token_urlsafe(32)}\n".encode())
    except OSError as error:
        raise InitError(
            f"{layout.data_dir} cannot be written: {error.strerror}",
            hint="choose a folder that you can write",
        ) from None
    return key
