"""Where files are inside a deployment's data folder."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

UNIX_PATH_MAX = 107
"""Longest path of a Unix socket on Linux in bytes (sun_path without its final zero)."""


@dataclass(frozen=True, slots=True)
class DataLayout:
    """The paths below ``instance.data_dir``. Nothing is created here."""

    data_dir: Path

    @property
    def run(self) -> Path:
        """Sockets and launch tokens; 0700, meaningful only while processes run."""
        return self.data_dir / "run"

    @property
    def logs(self) -> Path:
        """Process logs, one file a process."""
        return self.data_dir / "logs"

    @property
    def keys(self) -> Path:
        """Key slots; the file root has a folder of its own."""
        return self.data_dir / "keys"

    @property
    def key_socket(self) -> Path:
        """The key service's socket."""
        return self.run / "keys.sock"

    @property
    def signing_keys(self) -> Path:
        """Signing keys: backed up, unlike key slots and root."""
        return self.data_dir / "signing"

    def storage(self, workspace: str, deployment: str) -> Path:
        """A deployment's own folder in the workspace's Storage; sealed blocks are in its ``kv``."""
        return self.storage_root / storage_prefix(workspace, deployment)

    @property
    def storage_root(self) -> Path:
        """The Storage of every workspace, where no object store is named."""
        return self.data_dir / "storage"

    @property
    def control(self) -> Path:
        """The control plane's own state: what it remembers of logs, alerts, its log and keys."""
        return self.data_dir / "control"

    @property
    def control_audit(self) -> Path:
        """The control plane's own audit log; the first collection begins it."""
        return self.control / "audit"

    @property
    def audit(self) -> Path:
        """Audit log segments."""
        return self.data_dir / "audit"

    @property
    def witness(self) -> Path:
        """What witnesses of the log left here: timestamps, and a Git repository."""
        return self.data_dir / "witness"

    @property
    def erasure(self) -> Path:
        """Erasure jobs and the ledger, beside the keys: an old copy of those undoes none."""
        return self.data_dir / "erasure"

    @property
    def residency(self) -> Path:
        """The active residency policy, how it got here, and what is known of tenants."""
        return self.data_dir / "residency"

    @property
    def user_requests(self) -> Path:
        """Requests to erase a user in several deployments that are not finished."""
        return self.erasure / "users"

    @property
    def finetunes(self) -> Path:
        """Fine-tunes made here, a folder each, and the evaluations that outlive them."""
        return self.data_dir / "finetunes"

    @property
    def known_engines(self) -> Path:
        """Processes of engines that may hold plaintext."""
        return self.erasure / "engines.json"

    @property
    def undeleted(self) -> Path:
        """Sessions whose packs in Storage could not be deleted yet."""
        return self.erasure / "undeleted.json"

    @property
    def served_models(self) -> Path:
        """Which models were served here since when: what other models stored is removed by it."""
        return self.data_dir / "models.json"

    @property
    def instance_socket(self) -> Path:
        """Socket of the instance daemon."""
        return self.run / "instance.sock"

    @property
    def engine_socket(self) -> Path:
        """Socket of the engine's HTTP server."""
        return self.run / "engine.sock"

    @property
    def llama_socket(self) -> Path:
        """Socket of llama.cpp's own server, behind the slot server."""
        return self.run / "llama.sock"

    @property
    def admin_token(self) -> Path:
        """Admin launch token of this launch, read by the command line."""
        return self.run / "admin.token"

    @property
    def engine_token(self) -> Path:
        """Engine launch token; a file since the engine's workers inherit no descriptor."""
        return self.run / "engine.token"

    @property
    def claim_public_key(self) -> Path:
        """Hex of the Ed25519 public key that signs claims in this launch."""
        return self.run / "claim.pub"

    @property
    def claim_key(self) -> Path:
        """The claim key's private half, where a daemon run alone leaves it for its gateway."""
        return self.run / "claim.key"

    @property
    def tokens(self) -> Path:
        """JSON with the launch tokens, for a daemon run alone."""
        return self.run / "tokens.json"

    @property
    def owner_link(self) -> Path:
        """One-time token of the owner, made by ``kvrun init``."""
        return self.data_dir / "owner-link.token"

    @property
    def api_keys(self) -> Path:
        """API keys, as hashes."""
        return self.data_dir / "api_keys.json"

    @property
    def settings_record(self) -> Path:
        """What was set when, as far as it protects."""
        return self.data_dir / "settings.jsonl"

    @property
    def state(self) -> Path:
        """Which processes ``kvrun up`` runs, for ``kvrun status``."""
        return self.run / "up.json"


def storage_prefix(workspace: str, deployment: str) -> str:
    """A deployment's folder within Storage, without a slash at its end."""
    return f"{folder_name(workspace)}/deployments/{folder_name(deployment)}"


def folder_name(scope_id: str) -> str:
    """A name of the user's as one path component: ids may hold slashes and dots."""
    return quote(scope_id, safe="").replace(".", "%2E")
