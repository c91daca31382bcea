"""An OpenBao root against the real server, and against servers that misbehave."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from bao_server import BaoServer, raft_bao
from keys_support import open_service
from root_rigs import OpenBaoRig, openbao_policy

from kvrun.config import parse_config
from kvrun.keys import (
    ClaimClass,
    EpochGoneError,
    KeysError,
    RootError,
    RootRevokedError,
    RootUnavailableError,
    WrapError,
)
from kvrun.keys.keeper import Keeper
from kvrun.keys.open_root import open_root, probe_root
from kvrun.keys.openbao import OpenBaoKeeper
from kvrun.keys.secret_source import SecretSource


def test_a_key_that_was_used_before_is_refused(openbao_rig: OpenBaoRig) -> None:
    openbao_rig.open().close()
    openbao_rig.folder = openbao_rig.folder.with_name("second")
    with pytest.raises(RootError, match="used before"):
        openbao_rig.open()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"exportable": True}, "can be exported"),
        ({"allow_plaintext_backup": True}, "allows plaintext backups"),
        ({"type": "aes128-gcm96"}, "its type is aes128-gcm96"),
        ({"type": "rsa-2048"}, "its type is rsa-2048"),
        ({"derived": True}, "derived"),
        ({"auto_rotate_period": "24h"}, "rotates by itself"),
    ],
)
def test_a_key_that_could_leak_or_change_by_itself_is_refused(
    openbao_rig: OpenBaoRig, settings: dict[str, Any], says: str
) -> None:
    body = {"type": "aes256-gcm96"} | settings
    openbao_rig.server.call("POST", f"transit/keys/{openbao_rig.key}", body)
    with pytest.raises(RootError, match="cannot be a root") as caught:
        openbao_rig.open()
    assert says in caught.value.message


@pytest.mark.parametrize("without", ["rotate", "config", "trim", "encrypt", "decrypt"])
def test_each_line_of_the_documented_policy_is_needed(
    openbao_rig: OpenBaoRig, without: str
) -> None:
    rules = openbao_policy("transit", openbao_rig.key).splitlines()
    kept = [rule for rule in rules if without not in rule.split('"')[1].split("/")]
    assert len(kept) == len(rules) - 1
    openbao_rig.server.allow(openbao_rig.key, "\n".join(kept))

    def use() -> None:
        root = openbao_rig.open()
        root.check()
        root.create_epoch(1)
        root.create_epoch(2)
        root.destroy_epoch(1)

    with pytest.raises(RootRevokedError, match="permission denied") as caught:
        use()
    assert without in caught.value.message
    assert openbao_rig.token not in caught.value.message


def test_a_revoked_token_is_a_refusal_and_a_new_one_in_its_file_is_found(
    openbao_rig: OpenBaoRig,
) -> None:
    root = openbao_rig.open()
    root.create_epoch(1)
    root.check()
    openbao_rig.server.call("POST", "auth/token/revoke", {"token": openbao_rig.token})
    with pytest.raises(RootRevokedError, match="permission denied"):
        root.check()
    openbao_rig.token_file.write_text(openbao_rig.server.make_token(openbao_rig.key))
    root.check()
    root.close()


def test_a_customer_who_raises_the_minimum_stops_everything_and_destroys_nothing(
    openbao_rig: OpenBaoRig,
) -> None:
    root = openbao_rig.open()
    root.create_epoch(1)
    root.check()
    key = f"transit/keys/{openbao_rig.key}"
    server = openbao_rig.server
    server.call("POST", f"{key}/rotate")
    version = server.call("GET", key)["data"]["latest_version"]
    server.call("POST", f"{key}/config", {"min_decryption_version": version})
    with pytest.raises(RootRevokedError, match="too old"):
        root.check()
    root.close()
    with pytest.raises(RootRevokedError, match="gone, disabled"):
        openbao_rig.open()
    server.call("POST", f"{key}/config", {"min_decryption_version": 1})
    root = openbao_rig.open()
    assert root.epochs() == (1,)
    root.close()


def test_a_deleted_key_is_a_refusal_and_one_of_the_same_name_opens_nothing(
    openbao_rig: OpenBaoRig,
) -> None:
    root = openbao_rig.open()
    root.create_epoch(1)
    root.check()
    key, server = f"transit/keys/{openbao_rig.key}", openbao_rig.server
    server.call("POST", f"{key}/config", {"deletion_allowed": True})
    server.call("DELETE", key)
    with pytest.raises(RootRevokedError, match="not found"):
        root.check()
    root.close()
    with pytest.raises(RootRevokedError, match="There is no transit key"):
        openbao_rig.open()
    server.call("POST", key, {"type": "aes256-gcm96"})
    with pytest.raises(RootRevokedError, match="gone, disabled or not there yet"):
        openbao_rig.open()
    server.call("POST", f"{key}/rotate")
    with pytest.raises(RootError, match="does not open the root key"):
        openbao_rig.open()


def test_rotations_by_the_customer_disturb_nothing(openbao_rig: OpenBaoRig) -> None:
    root = openbao_rig.open()
    root.create_epoch(1)
    for epoch in (2, 3):
        for _ in range(3):
            openbao_rig.server.call("POST", f"transit/keys/{openbao_rig.key}/rotate")
        root.create_epoch(epoch)
        root.destroy_epoch(epoch - 1)
        root.check()
    root.close()
    root = openbao_rig.open()
    assert root.epochs() == (3,)
    root.close()


def test_one_deployments_ciphertext_does_not_open_as_anothers(openbao_rig: OpenBaoRig) -> None:
    keeper = openbao_rig.keeper()
    keeper.bind(bytes(16), fresh=True)
    secret, out = memoryview(bytearray(range(32))), memoryview(bytearray(32))
    wrapped = keeper.encrypt(1, b"one", secret)
    keeper.decrypt_into(1, b"one", wrapped, out)
    assert out == secret
    for context, changed in (
        (b"two", wrapped),
        (b"one", wrapped[:-6] + (b"A" if wrapped[-6:-5] != b"A" else b"B") + wrapped[-5:]),
        (b"one", b"vault:v1:!"),
        (b"one", b"\xff"),
        (b"one", wrapped.replace(b":v1:", b":v2:")),
    ):
        with pytest.raises(WrapError):
            keeper.decrypt_into(1, context, changed, out)
    keeper.close()


def test_a_root_in_a_namespace_is_the_namespaces(bao: BaoServer, tmp_path: Path) -> None:
    bao.call("POST", "sys/namespaces/customer")
    bao.call("POST", "sys/mounts/team/transit", {"type": "transit"}, namespace="customer")
    rules = {"policy": openbao_policy("team/transit", "chat")}
    bao.call("POST", "sys/policies/acl/chat", rules, namespace="customer")
    token = bao.make_token("chat", namespace="customer")
    text = f"""
[keys]
root = "openbao:{bao.url}/team/transit/chat"
root_secret = "env:CHAT_TOKEN"
root_ca_file = "{bao.ca_file}"
root_namespace = "customer"
"""
    config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
    environ = {"CHAT_TOKEN": token}
    data = config.layout.data_dir
    claim, reason = probe_root(config.keys, data, snapshot_days=None, environ=environ)
    assert claim is ClaimClass.LOGICAL
    assert "not declared" in reason
    assert not data.exists()
    root = open_root(config.keys, data, strict=False, snapshot_days=0, environ=environ)
    root.create_epoch(1)
    root.check()
    assert root.facts.claim is ClaimClass.DEVICE
    assert (data / "root-openbao" / "kept.slots").exists()
    root.close()
    with pytest.raises(RootError, match="variable CHAT_TOKEN cannot be read: it is not set"):
        open_root(config.keys, data, strict=False, snapshot_days=0, environ={})


def test_a_server_that_the_ca_file_does_not_vouch_for_is_not_spoken_to(
    bao: BaoServer, tmp_path: Path
) -> None:
    keeper = OpenBaoKeeper(url=bao.url, mount="transit", key="chat", token=token_in(tmp_path))
    with pytest.raises(RootUnavailableError, match="certificate verify failed"):
        keeper.greet()
    keeper.close()
    with pytest.raises(RootError, match="CA file"):
        OpenBaoKeeper(
            url=bao.url,
            mount="transit",
            key="chat",
            token=token_in(tmp_path),
            ca_file=tmp_path / "missing.pem",
        )


def test_a_restored_snapshot_brings_keys_back_which_is_why_its_retention_is_declared(
    tmp_path: Path,
) -> None:
    (tmp_path / "bao").mkdir()
    with raft_bao(tmp_path / "bao") as server:
        rig = OpenBaoRig(tmp_path, server)
        service = open_service(tmp_path, root=rig.open())
        salt = service.acquire("alice", "one").salt
        service.acquire("alice", "two")
        service.close()
        snapshot = server.snapshot()
        shutil.copytree(tmp_path / "keys", tmp_path / "old" / "keys")
        shutil.copytree(tmp_path / "root", tmp_path / "old" / "root")
        service = open_service(tmp_path, root=rig.open())
        destroyed = service.destroy_session("alice", "one")
        assert destroyed is not None
        service.close()

        def put_back() -> None:
            for name in ("keys", "root"):
                shutil.rmtree(tmp_path / name)
                shutil.copytree(tmp_path / "old" / name, tmp_path / name)

        # Everything of this machine put back, OpenBao as it is: nothing opens.
        shutil.copytree(tmp_path / "keys", tmp_path / "new" / "keys")
        shutil.copytree(tmp_path / "root", tmp_path / "new" / "root")
        put_back()
        with pytest.raises(RootRevokedError, match="gone, disabled"):
            rig.open()
        # OpenBao put back as well: the erased session is there again.
        server.restore(snapshot)
        rig.token_file.write_text(server.make_token(rig.key))
        service = open_service(tmp_path, root=rig.open())
        found = service.find("alice", "one")
        assert found is not None
        assert found.salt == salt
        service.close()
        # Today's folders under the restored OpenBao are ahead of it, and open nothing.
        for name in ("keys", "root"):
            shutil.rmtree(tmp_path / name)
            shutil.copytree(tmp_path / "new" / name, tmp_path / name)
        with pytest.raises(RootRevokedError, match="not there yet"):
            rig.open()
        server.call("PUT", "sys/seal")
        with pytest.raises(RootUnavailableError, match="sealed"):
            rig.open()


def token_in(folder: Path) -> SecretSource:
    path = folder / "some-token"
    path.touch(0o600)
    path.write_text("hvs.secret")
    return SecretSource(f"file:{path}", {}, what="OpenBao token")


KEY = {
    "latest_version": 1,
    "min_decryption_version": 1,
    "keys": {"1": 1},
    "type": "aes256-gcm96",
}


@contextmanager
def answering(
    status: int, body: bytes, headers: dict[str, str] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything alike; its address and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def keeper_at(url: str, folder: Path, timeout_s: float = 5.0) -> Keeper:
    return OpenBaoKeeper(
        url=url, mount="transit", key="chat", token=token_in(folder), timeout_s=timeout_s
    )


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (200, b"<html>", RootError, "something else than expected"),
        (200, b"", RootError, "something else than expected"),
        (200, b'{"data": {"type": 3}}', RootError, "something else than expected"),
        (200, b'{"errors": []}', RootError, "something else than expected"),
        (200, b"[" * (1 << 21), RootError, "more than 262144 bytes"),
        (403, b'{"errors": ["permission denied"]}', RootRevokedError, "permission denied"),
        (404, b'{"errors": ["no handler for route"]}', RootRevokedError, "no handler"),
        (429, b"", RootUnavailableError, "status 429"),
        (500, b"\xff" * 5000, RootUnavailableError, "status 500"),
        (503, b'{"errors": ["Vault is sealed"]}', RootUnavailableError, "sealed"),
    ],
)
def test_an_answer_that_is_not_expected_is_told_apart(
    tmp_path: Path, status: int, body: bytes, kind: type[KeysError], says: str
) -> None:
    with answering(status, body) as (url, _):
        keeper = keeper_at(url, tmp_path)
        with pytest.raises(kind) as caught:
            keeper.live([1])
        assert type(caught.value) is kind
        assert says in caught.value.message
        assert len(caught.value.message) < 600
        assert "hvs.secret" not in f"{caught.value.message}{caught.value.hint}"
        keeper.close()


def test_a_redirect_does_not_carry_the_token_away(tmp_path: Path) -> None:
    with (
        answering(200, b"{}") as (elsewhere, stolen),
        answering(307, b"", {"Location": f"{elsewhere}/v1/transit/keys/chat"}) as (url, asked),
    ):
        keeper = keeper_at(url, tmp_path)
        with pytest.raises(RootUnavailableError) as caught:
            keeper.live([1])
        assert "standby" in (caught.value.hint or "")
        keeper.close()
    assert asked == ["/v1/transit/keys/chat"]
    assert stolen == []


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"ciphertext": "vault:v7:AAAA"}, "another version"),
        ({"ciphertext": "vault:v1:" + "A" * 500}, "another version"),
        ({"plaintext": "!"}, "did not answer with 32 bytes"),
        ({"plaintext": base64.b64encode(bytes(31)).decode()}, "did not answer with 32 bytes"),
    ],
)
def test_a_lying_server_is_caught_where_it_can_be(
    tmp_path: Path, answer: dict[str, str], says: str
) -> None:
    with answering(200, json.dumps({"data": KEY | answer}).encode()) as (url, _):
        keeper = keeper_at(url, tmp_path)
        out = memoryview(bytearray(32))
        calls: dict[str, Callable[[], object]] = {
            "ciphertext": lambda: keeper.encrypt(1, b"context", out),
            "plaintext": lambda: keeper.decrypt_into(1, b"context", b"vault:v1:AAAA", out),
        }
        with pytest.raises((RootError, WrapError), match=says):
            calls[next(iter(answer))]()
        assert bytes(out) == bytes(32)
        keeper.close()


def test_a_server_that_only_says_it_destroyed_is_not_believed(tmp_path: Path) -> None:
    data = KEY | {"latest_version": 3, "keys": {"1": 1, "2": 1, "3": 1}}
    with answering(200, json.dumps({"data": data}).encode()) as (url, _):
        keeper = keeper_at(url, tmp_path)
        with pytest.raises(RootError, match="still lists version 1"):
            keeper.destroy(1)
        keeper.close()


def test_a_destroyed_version_is_told_from_a_wrong_ciphertext(openbao_rig: OpenBaoRig) -> None:
    keeper = openbao_rig.keeper()
    keeper.bind(bytes(16), fresh=True)
    secret = memoryview(bytearray(32))
    wrapped = keeper.encrypt(1, b"one", secret)
    assert keeper.new_key(1) == 2
    assert "version 1" in keeper.destroy(1)
    assert "version 1" in keeper.destroy(1)  # again is allowed
    with pytest.raises(EpochGoneError, match="too old"):
        keeper.decrypt_into(1, b"one", wrapped, secret)
    with pytest.raises(RootError, match="version 50 was in use") as caught:
        keeper.new_key(50)
    assert "older state of OpenBao" in (caught.value.hint or "")
    keeper.close()


def test_a_silent_server_is_given_up(tmp_path: Path, openbao_rig: OpenBaoRig) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        keeper = keeper_at(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, timeout_s=0.1)
        with pytest.raises(RootUnavailableError, match="timed out"):
            keeper.live([1])
        keeper.close()


@pytest.mark.parametrize("content", ["", "two words", "line\nline", "x" * 5000, "héllo"])
def test_a_token_that_is_none_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(content)
    source = SecretSource(f"file:{path}", {}, what="OpenBao token")
    with pytest.raises(RootError, match="printable ASCII") as caught:
        source.read()
    if content:
        assert content not in caught.value.message


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o644)
    path.write_text("hvs.secret")
    with pytest.raises(KeysError, match="0644"):
        SecretSource(f"file:{path}", {}, what="OpenBao token").read()


def test_a_secret_in_a_descriptor_is_read_once(tmp_path: Path) -> None:
    import os

    reader, writer = os.pipe()
    os.write(writer, b"hvs.secret\n")
    os.close(writer)
    source = SecretSource(f"fd:{reader}", {}, what="OpenBao token")
    assert source.read() == source.read() == "hvs.secret"
    with pytest.raises(RootError, match="descriptor"):
        SecretSource(f"fd:{reader}", {}, what="OpenBao token").read()
