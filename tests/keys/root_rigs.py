"""One rig for each root: open it (again), take the right to use it away, cut it off."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bao_server import BaoServer, Wire

from kvrun.keys import FileRoot, MemoryRoot, Root
from kvrun.keys.keeper import Keeper
from kvrun.keys.kept_root import KeptRoot
from kvrun.keys.secret_source import SecretSource

SOFTHSM = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "4711"


class RootRig:
    """What the contract tests need of a root."""

    can_refuse = True

    def open(self) -> Root:
        """The same root each time; the one before must be closed."""
        raise NotImplementedError

    def withdraw(self) -> None:
        """Its owner takes back the right to use it."""

    def allow(self) -> None:
        """Its owner gives the right back."""

    def cut(self) -> None:
        """It cannot be reached."""

    def mend(self) -> None:
        """It can be reached again."""


class MemoryRig(RootRig):
    can_refuse = False

    def open(self) -> Root:
        return MemoryRoot()


class FileRig(RootRig):
    def __init__(self, base: Path) -> None:
        self.folder = base / "root"

    def open(self) -> Root:
        return FileRoot(self.folder)

    def withdraw(self) -> None:
        self.folder.rename(self.folder.with_name("taken"))

    def allow(self) -> None:
        self.folder.with_name("taken").rename(self.folder)


class KeptRig(RootRig):
    """``snapshot_days`` 0: its operator declared that there are no snapshots."""

    snapshot_days: int | None = 0

    def __init__(self, base: Path) -> None:
        self.folder = base / "root"

    def keeper(self) -> Keeper:
        """A fresh connection to the same keys."""
        raise NotImplementedError

    def open(self) -> KeptRoot:
        keeper = self.keeper()
        try:
            return KeptRoot(self.folder, keeper, snapshot_retention_days=self.snapshot_days)
        except BaseException:
            keeper.close()
            raise


class OpenBaoRig(KeptRig):
    """A transit key of its own, a token that may do just what is needed, and a wire to cut."""

    def __init__(self, base: Path, server: BaoServer) -> None:
        super().__init__(base)
        self.server = server
        self.key = f"chat-{uuid.uuid4().hex[:12]}"
        server.allow(self.key, openbao_policy("transit", self.key))
        self.token = server.make_token(self.key)
        self.token_file = base / "token"
        self.token_file.touch(0o600)
        self.token_file.write_text(self.token + "\n")
        self.timeout_s = 5.0
        self._wire: Wire | None = None

    def keeper(self) -> Keeper:
        from kvrun.keys.openbao import OpenBaoKeeper

        return OpenBaoKeeper(
            url=f"{urlsplit(self.server.url).scheme}://127.0.0.1:{self.wire.port}",
            mount="transit",
            key=self.key,
            token=SecretSource(f"file:{self.token_file}", {}, what="OpenBao token"),
            ca_file=self.server.ca_file,
            timeout_s=self.timeout_s,
        )

    @property
    def wire(self) -> Wire:
        if self._wire is None:
            self._wire = Wire(urlsplit(self.server.url).port or 0)
        return self._wire

    def withdraw(self) -> None:
        self.server.allow(self.key, openbao_policy("transit", self.key, without="decrypt"))

    def allow(self) -> None:
        self.server.allow(self.key, openbao_policy("transit", self.key))

    def cut(self) -> None:
        self.wire.cut()

    def mend(self) -> None:
        self.wire.mend()


def openbao_policy(mount: str, key: str, *, without: str = "") -> str:
    """The policy of docs/roots.md for one key, but for one of its paths."""
    rules = {
        f"{mount}/keys/{key}": ["create", "read", "update"],
        f"{mount}/keys/{key}/rotate": ["update"],
        f"{mount}/keys/{key}/config": ["update"],
        f"{mount}/keys/{key}/trim": ["update"],
        f"{mount}/encrypt/{key}": ["update"],
        f"{mount}/decrypt/{key}": ["update"],
    }
    return "\n".join(
        f'path "{path}" {{ capabilities = {json.dumps(allowed)} }}'
        for path, allowed in rules.items()
        if not without or f"/{without}/" not in path
    )


class Pkcs11Rig(KeptRig):
    """Keys in the SoftHSM token ``token`` under a root of its own."""

    def __init__(self, base: Path, token: str) -> None:
        super().__init__(base)
        self.token = token
        self.label = token
        self.pin_file = base / "pin"
        self.pin_file.touch(0o600)
        self.pin_file.write_text(PIN)

    def keeper(self) -> Keeper:
        from kvrun.keys.pkcs11_token import Pkcs11Keeper

        return Pkcs11Keeper(
            module=SOFTHSM,
            token=self.label,
            key="chat",
            pin=SecretSource(f"file:{self.pin_file}", {}, what="PIN"),
        )

    def withdraw(self) -> None:
        self.pin_file.write_text("0815")

    def allow(self) -> None:
        self.pin_file.write_text(PIN)

    def cut(self) -> None:
        tokens = Path(os.environ["KVRUN_TEST_TOKENS"])
        for token in list(tokens.iterdir()):
            token.rename(tokens.parent / token.name)
        restart_module()

    def mend(self) -> None:
        tokens = Path(os.environ["KVRUN_TEST_TOKENS"])
        for token in [path.parent for path in tokens.parent.glob("*/token.object")]:
            token.rename(tokens / token.name)


def make_token(label: str) -> None:
    """Initialise a token in the folder that SOFTHSM2_CONF names."""
    subprocess.run(
        f"softhsm2-util --init-token --free --label {label} --pin {PIN} --so-pin 12345678".split(),
        check=True,
        capture_output=True,
    )


def restart_module() -> None:
    """What a restarted token daemon leaves: every session of this process is gone."""
    import pkcs11

    module = pkcs11.lib(str(SOFTHSM))
    module.finalize()
    module.initialize()


class AwsKmsRig(KeptRig):
    """A key of moto's KMS. moto decrypts whatever the key's state is: refusals are put in the way
    of the requests, in the words of AWS's documentation."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        import boto3

        client = boto3.client("kms", region_name="eu-central-1")
        made = client.create_key(KeySpec="SYMMETRIC_DEFAULT", KeyUsage="ENCRYPT_DECRYPT")
        self.arn: str = made["KeyMetadata"]["Arn"]
        self.refusal: str | None = None
        self.gone = False

    def keeper(self) -> Keeper:
        from kvrun.keys.aws_kms import AwsKmsKeeper

        keeper = AwsKmsKeeper(arn=self.arn, region="eu-central-1")
        keeper._client.meta.events.register_first("before-send.kms.*", self._answer)
        return keeper

    def withdraw(self) -> None:
        self.refusal = "DisabledException"

    def allow(self) -> None:
        self.refusal = None

    def cut(self) -> None:
        self.gone = True

    def mend(self) -> None:
        self.gone = False

    def _answer(self, request: Any, **_: object) -> Any:
        from botocore.awsrequest import AWSResponse
        from botocore.exceptions import EndpointConnectionError

        if self.gone:
            raise EndpointConnectionError(endpoint_url=request.url)
        if self.refusal is None:
            return None
        body = json.dumps({"__type": self.refusal, "message": f"{self.arn} is disabled."})

        class Raw:
            def stream(self, **_: object) -> Any:
                yield body.encode()

        return AWSResponse(request.url, 400, {}, Raw())
