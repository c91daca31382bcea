"""Results of isolation self-tests and evaluations of fine-tunes, as they were signed."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from kvrun.audit.verdict import Verdict
from kvrun.config.layout import folder_name, storage_prefix
from kvrun.erasure.trust import TrustAnchor
from kvrun.errors import KvrunError
from kvrun.evidence.archive import Archive
from kvrun.evidence.container import check_name
from kvrun.evidence.errors import BundleFormatError
from kvrun.evidence.period import Period
from kvrun.evidence.report import BundleCheck, CheckResult, Findings
from kvrun.evidence.scope import Scope
from kvrun.evidence.staging import Part
from kvrun.finetune.evaluation import (
    EVALUATION_NAME,
    PREDICATE_TYPE,
    STATEMENT_NAME,
    EvaluationPredicate,
    decode_evaluation,
)
from kvrun.finetune.store import FineTunes, Kept
from kvrun.isolation.report import FOLDER_NAME, IsolationPredicate, Outcome, read_result
from kvrun.statements.document import (
    MAX_DOCUMENT_BYTES,
    PredicateT,
    Signed,
    Signer,
    StatementError,
    judge_signer,
    read_statement,
)

ISOLATION, FINETUNES = "isolation/", "finetunes/"
_MAX_EVALUATION_BYTES = 16 << 20


class ResultFact(msgspec.Struct, frozen=True, kw_only=True):
    """One result in words: of what (``about``), when, and what came of it."""

    what: str
    about: str
    at: str
    good: bool
    said: str
    file: str


def take_results(part: Part, scope: Scope, period: Period) -> list[ResultFact]:
    """Stage what was issued in the period, and say what it is. Raises KvrunError."""
    found = []
    for site in scope.sites:
        deployment = site.config.deployment
        folder = f"{storage_prefix(deployment.workspace, deployment.name)}/{FOLDER_NAME}"
        storage = site.plane.storage()
        for name in sorted(item.name for item in storage.list(folder)):
            data = storage.get_range(name, 0, MAX_DOCUMENT_BYTES + 1)
            try:
                result = read_result(data).predicate
            except StatementError:
                continue
            if period.has(result.issued_at):
                last = name.rpartition("/")[2]
                place = check_name(f"{ISOLATION}{folder_name(site.id)}/{last}")
                part.add(place, data)
                found.append(_test_fact(result, site.spec.name, place))
    for kept in evaluations(scope, period):
        place = f"{FINETUNES}{folder_name(kept.note.id)}"
        part.add(f"{place}/{EVALUATION_NAME}", kept.evaluation_bytes)
        part.add(f"{place}/{STATEMENT_NAME}", kept.statement_bytes)
        found.append(_evaluation_fact(kept, f"{place}/{EVALUATION_NAME}"))
    return found


def _test_fact(result: IsolationPredicate, deployment: str, file: str) -> ResultFact:
    by = {
        outcome: [check.name for check in result.checks if check.outcome is outcome]
        for outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.SKIPPED)
    }
    count = len(result.checks)
    told = [f"{count} check{'' if count == 1 else 's'}"]
    told += [f"{outcome.value}: {', '.join(names)}" for outcome, names in by.items() if names]
    return ResultFact(
        what=f"isolation self-test: {result.outcome.value}",
        about=deployment,
        at=result.issued_at,
        good=result.outcome is Outcome.PASS,
        said="; ".join(told),
        file=file,
    )


def _evaluation_fact(kept: Kept, file: str) -> ResultFact:
    base, tuned = kept.evaluation.base_score, kept.evaluation.tuned_score
    return ResultFact(
        what="evaluation",
        about=kept.note.name,
        at=kept.evaluation.evaluated_at,
        good=True,
        said=f"loss {base.loss:.3f} before and {tuned.loss:.3f} after, exact answers"
        f" {base.exact_matches} and {tuned.exact_matches} of {tuned.examples}",
        file=file,
    )


def evaluations(scope: Scope, period: Period) -> list[Kept]:
    """Evaluations of fine-tunes that were made in the period, the first one first.

    Raises FineTuneError for a record that is damaged.
    """
    if scope.finetunes is None:
        return []
    served = {Path(site.spec.model).name for site in scope.sites}
    return [
        kept
        for kept in reversed(FineTunes(scope.finetunes).records())
        if not scope.deployment_id or kept.note.name in served
        if period.has(kept.evaluation.evaluated_at)
    ]


@dataclass(slots=True)
class ResultChecks:
    """Checks the signed results in an archive."""

    archive: Archive
    anchor: TrustAnchor | None
    period: Period
    found: Findings
    results: int = 0

    def check(self) -> CheckResult:
        """Whether each is whole, signed by a known key, and of the period."""
        for name in self.archive.names:
            try:
                if name.startswith(ISOLATION):
                    self._take(name, read_result(self.archive.read(name, MAX_DOCUMENT_BYTES)))
                elif name.startswith(FINETUNES) and name.endswith(f"/{EVALUATION_NAME}"):
                    self._evaluation(name)
            except BundleFormatError as error:
                self.found.fail(error.name or name, error.message)
            except KvrunError as error:
                self.found.fail(name, error.message)
        verdict = Verdict.PASS if self.anchor or not self.results else Verdict.UNKNOWN
        return self.found.result(
            f"{self.results} self-test(s) of isolation and evaluation(s)", verdict=verdict
        )

    def _evaluation(self, name: str) -> None:
        data = self.archive.read(name, _MAX_EVALUATION_BYTES)
        statement = f"{name.rpartition('/')[0]}/{STATEMENT_NAME}"
        signed = read_statement(
            self.archive.read(statement, MAX_DOCUMENT_BYTES), PREDICATE_TYPE, EvaluationPredicate
        )
        evaluation = decode_evaluation(data)
        if signed.predicate.evaluation_sha256 != sha256(data).hexdigest():
            self.found.fail(name, "it is not the evaluation that was signed")
        if not self.period.has(evaluation.evaluated_at):
            self.found.fail(name, "it is not of the period")
        self.results += 1
        self._signer(statement, signed)

    def _take(self, name: str, signed: Signed[PredicateT]) -> None:
        if not self.period.has(signed.predicate.issued_at):
            self.found.fail(name, "it is not of the period")
        self.results += 1
        self._signer(name, signed)

    def _signer(self, name: str, signed: Signed[PredicateT]) -> None:
        if self.anchor is not None:
            signer, why = judge_signer(signed, self.anchor.keys)
            if signer is not Signer.TRUSTED:
                self.found.fail(name, why)


def result_checks(archive: Archive, anchor: TrustAnchor | None, period: Period) -> ResultChecks:
    """Checks for an archive; ``anchor``: the keys that are trusted, if any are."""
    return ResultChecks(archive, anchor, period, Findings(BundleCheck.RESULTS))
