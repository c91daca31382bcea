"""The bench makes evidence that verifies, in both forms, and says what it took."""

from kvrun.bench.evidence import EvidenceBenchSettings, run_evidence_bench


def test_it_exports_and_verifies_both_forms_and_reports_memory() -> None:
    report = run_evidence_bench(EvidenceBenchSettings(1000, 5, 1000))
    metrics = {row.metric: row for row in report.rows}
    assert metrics["export, summary form"].value is not None
    assert metrics["verify, --full"].value is not None
    assert metrics["export, summary form"].goal is None, "a small run has no verdict on time"
    assert metrics["most memory of the export"].goal == "<= 500"
