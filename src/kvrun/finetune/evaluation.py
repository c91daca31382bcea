"""``evaluation.json`` and the signed statement over it and every file of the weights.

``docs/spec/finetune-evaluation.md`` specifies both. The statement's subjects are all files of the
model folder but itself, so that a file that was changed, removed or added is named.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvrun.errors import KvrunError
from kvrun.finetune.errors import EvaluationError, FineTuneError
from kvrun.finetune.harness import TaskResults
from kvrun.finetune.scoring import Score
from kvrun.finetune.training import Plan
from kvrun.keys.signing import PublicKeyRecord, SigningKey
from kvrun.statements.document import (
    MAX_DOCUMENT_BYTES,
    Predicate,
    Signed,
    Signer,
    judge_signer,
    read_statement,
    sign_statement,
)

EVALUATION_FORMAT = "kvrun-evaluation/v1"
HARNESS = "kvrun-eval/1"
EVALUATION_NAME = "evaluation.json"
STATEMENT_NAME = "evaluation.intoto.json"
PREDICATE_TYPE = "https://kvrun.dev/finetune-evaluation/v1"
MAX_FILES = 5_000
_NAMED = 5


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class BaseModel(_Part, frozen=True, kw_only=True):
    """The model it began with: as it was named, and the digest of its files (hex)."""

    model: str
    digest: str


class DataFile(_Part, frozen=True, kw_only=True):
    """Examples as they were used; ``sha256`` (hex) is the file's that they came from."""

    sha256: str
    size_bytes: int
    examples: int


class EvaluationData(_Part, frozen=True, kw_only=True):
    """What the scores were taken on. ``split``: ``given`` (a file of its own) or ``held_out``.

    ``overlap``: examples that were trained on word for word; None where nobody knows.
    """

    sha256: str
    size_bytes: int
    examples: int
    split: str
    overlap: int | None


class Machine(_Part, frozen=True, kw_only=True):
    """What computed the scores."""

    system: str
    processor: str
    device: str
    threads: int
    versions: dict[str, str]


class Evaluation(_Part, frozen=True, kw_only=True):
    """The content of ``evaluation.json``. ``training`` and ``plan`` are None for an adapter that
    was imported: how it was made is not known here. ``tasks`` is None where none was named."""

    format: str = EVALUATION_FORMAT
    id: str
    name: str
    harness: str = HARNESS
    evaluated_at: str
    seed: int
    base: BaseModel
    adapter_sha256: str
    origin: str
    training: DataFile | None
    plan: Plan | None
    evaluation: EvaluationData
    base_score: Score
    tuned_score: Score
    tasks: TaskResults | None = None
    machine: Machine


class EvaluationPredicate(Predicate, frozen=True, kw_only=True):
    """What the statement says besides its subjects. ``evaluation_sha256`` (hex) is the file's."""

    id: str
    name: str
    base_digest: str
    evaluation_sha256: str
    harness: str
    version: str


@dataclass(frozen=True, slots=True)
class FolderCheck:
    """What became of the evaluation of a model folder. ``problem`` is empty where it holds."""

    evaluation: Evaluation | None
    signer: Signer | None
    detail: str
    problem: str

    @property
    def holds(self) -> bool:
        """Whether weights, evaluation and signature are what they were."""
        return not self.problem


def encode_evaluation(evaluation: Evaluation) -> bytes:
    """The bytes of ``evaluation.json``."""
    raw = msgspec.json.encode(evaluation, order="sorted")
    return msgspec.json.format(raw, indent=2) + b"\n"


def decode_evaluation(data: bytes) -> Evaluation:
    """The evaluation in a file's bytes. Raises EvaluationError."""
    try:
        found = msgspec.json.decode(data, type=Evaluation)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise EvaluationError(f"{EVALUATION_NAME} is malformed: {error}") from None
    if found.format != EVALUATION_FORMAT:
        raise EvaluationError(f"this version does not know the format {found.format[:60]!r}")
    return found


def file_digests(folder: Path) -> dict[str, str]:
    """Hex SHA-256 of every file in a model folder by its path there, but of the statement.

    Every byte is read. Raises FineTuneError for a link, for something that is no plain file, and
    where the folder cannot be read.
    """
    try:
        paths = sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
        if len(paths) > MAX_FILES:
            raise FineTuneError(f"{folder} holds {len(paths)} files; at most {MAX_FILES} can be")
        for path in paths:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise FineTuneError(f"{path} is a link or no plain file")
        named = {path.relative_to(folder).as_posix(): path for path in paths}
        named.pop(STATEMENT_NAME, None)
        with ThreadPoolExecutor(max_workers=4) as pool:
            return dict(zip(named, pool.map(_sha256, named.values()), strict=True))
    except OSError as error:
        raise FineTuneError(f"{folder} cannot be read: {error}") from None


def sign_folder(
    folder: Path, evaluation: Evaluation, signer: SigningKey, *, issued_at: str, version: str
) -> bytes:
    """The statement's bytes over a folder in which ``evaluation.json`` lies already."""
    digests = file_digests(folder)
    predicate = EvaluationPredicate(
        issued_at=issued_at,
        id=evaluation.id,
        name=evaluation.name,
        base_digest=evaluation.base.digest,
        evaluation_sha256=digests[EVALUATION_NAME],
        harness=evaluation.harness,
        version=version,
    )
    return sign_statement(PREDICATE_TYPE, digests, predicate, signer)


def check_folder(folder: Path, known: Sequence[PublicKeyRecord]) -> FolderCheck:
    """Check weights, evaluation and signature of a model folder against the ``known`` keys."""
    try:
        signed = read_statement(_read(folder / STATEMENT_NAME), PREDICATE_TYPE, EvaluationPredicate)
        data = _read(folder / EVALUATION_NAME)
        digests = file_digests(folder)
    except FileNotFoundError as error:
        name = Path(error.filename).name
        return FolderCheck(None, None, "", f"it has no evaluation: {name} is missing")
    except OSError as error:
        return FolderCheck(None, None, "", f"its evaluation cannot be read: {error}")
    except KvrunError as error:
        return FolderCheck(None, None, "", error.message)
    signer, detail = judge_signer(signed, known)
    problem = _difference(signed, digests)
    evaluation = None
    if signed.predicate.evaluation_sha256 != hashlib.sha256(data).hexdigest():
        problem = problem or f"{EVALUATION_NAME} is not the one that was signed"
    else:
        try:
            evaluation = decode_evaluation(data)
        except EvaluationError as error:
            problem = problem or error.message
    if signer is not Signer.TRUSTED:
        problem = problem or f"nobody known here signed its evaluation: {detail}"
    return FolderCheck(evaluation, signer, detail, problem)


def _difference(signed: Signed[EvaluationPredicate], digests: dict[str, str]) -> str:
    """What of the folder is not as it was evaluated, in words."""
    stated = signed.subjects
    changed = [name for name in stated if name in digests and digests[name] != stated[name]]
    parts = (
        ("changed", changed),
        ("missing", sorted(set(stated) - set(digests))),
        ("added", sorted(set(digests) - set(stated))),
    )
    told = []
    for what, names in parts:
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            told.append(f"{what}: {', '.join(names[:_NAMED])}{more}")
    return f"its files are not those that were evaluated ({'; '.join(told)})" if told else ""


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_DOCUMENT_BYTES + 1)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
