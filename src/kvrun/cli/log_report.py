"""How ``kvrun verify`` shows what it found out about an audit log: four verdicts and what to do."""

import textwrap

import msgspec
from rich.text import Text

from kvrun.audit.verdict import Aspect, Code, Finding, Verdict, VerificationReport
from kvrun.cli.options import WIDTH, console

JSON_VERSION = 1
_SHOWN = 3
_INDENT = " " * 23
_STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.UNKNOWN: "yellow"}
_EVIDENCE = (
    "Leave the folder as it is, it is evidence; keep a copy elsewhere, and compare it with the "
    "collected segments."
)
_ADVICE = {
    Code.NOT_SIGNED: "Make sure that the key you gave is this log's. If it is, somebody else made "
    "this log or its checkpoint.",
    Code.BAD_CHECKPOINT: "Fetch the checkpoint or key again. If it stays malformed, treat the log "
    "as changed.",
    Code.RECORDS_LOST: "The gap's time and reason say when and why records were lost; learn what "
    "happened then elsewhere.",
    Code.MISSING_RECORDS: "Give all segments of the log. If you did, records were removed: leave "
    "the folder as it is.",
    Code.FROM_THE_FUTURE: "Check this machine's clock, then the writer's.",
    Code.CLOCK_BACKWARDS: "Ask who set the writer's clock: times around that record are doubtful.",
    Code.SILENCE: "Ask why the writer was silent: the machine was paused, or records are missing.",
    Code.STALE: "See whether the instance still runs, and collect again.",
    Code.BAD_COSIGNATURE: "Ask the witness for its cosignature; do not rely on this checkpoint.",
    Code.BAD_EVIDENCE: "Ask the witness for its evidence; do not rely on this one.",
    Code.SELF_ASSERTED: "Get the log's key from its owner by another way (`kvrun trust export`), "
    "and give it with --key or --trust: without it, anyone could have made this log.",
    Code.NO_CHECKPOINT: "Give the segment's manifest or a checkpoint that covers it: --checkpoint "
    "FILE.",
    Code.TAIL_NOT_ANCHORED: "Give a checkpoint that somebody else kept (--checkpoint FILE), so "
    "that a rollback or a rewrite would show.",
    Code.STARTS_LATE: "Give the earlier segments too, to verify the log from its start.",
    Code.LAST_RECORD: "Say how old the last record may be: --max-age SECONDS.",
    Code.NO_WITNESS: "Give the keys of the log's witnesses (--witness-key FILE) with a checkpoint "
    "that they cosigned.",
}


def print_log_report(report: VerificationReport, *, as_json: bool) -> None:
    """Print for people, or as one JSON object for scripts."""
    out = console()
    if as_json:
        out.out(report_json(report))
        return
    for line, style in _lines(report):
        out.print(Text(line, style=style), soft_wrap=True)


def report_text(report: VerificationReport) -> str:
    """The report for people: verdicts with the findings that decided them, and a next step."""
    return "\n".join(line for line, _ in _lines(report))


def report_json(report: VerificationReport) -> str:
    """The report as one JSON object; ``docs/spec/audit-log.md`` describes it."""
    return msgspec.json.encode(
        {
            "v": JSON_VERSION,
            "log": report.log_id,
            "first_seq": report.first_seq,
            "next_seq": report.next_seq,
            "trusted_key": report.trusted_key,
            "exit_code": report.exit_code,
            "verdicts": {str(aspect): str(report.verdict(aspect)) for aspect in Aspect},
            "findings": [
                {
                    "aspect": item.aspect,
                    "code": item.code,
                    "verdict": item.verdict,
                    "detail": item.detail,
                }
                for item in report.findings
            ],
            "next": next_step(report),
        }
    ).decode()


def next_step(report: VerificationReport) -> str:
    """The most useful thing to do now; "" when all four verdicts pass under a trusted key."""
    for verdict in (Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN):
        for item in report.findings:
            if item.verdict is not verdict:
                continue
            if verdict is Verdict.FAIL:
                return _ADVICE.get(item.code, _EVIDENCE)
            # Of what passes only an unproven key asks for something.
            if item.code in _ADVICE and (
                verdict is Verdict.UNKNOWN or item.code is Code.SELF_ASSERTED
            ):
                return _ADVICE[item.code]
    return ""


def _lines(report: VerificationReport) -> list[tuple[str, str]]:
    span = f"records {report.first_seq} to {report.next_seq - 1}"
    if report.next_seq <= report.first_seq:
        span = "no records"
    lines = [(part, "bold") for part in _wrap(f"log {report.log_id or '(none)'}, {span}")]
    for aspect in Aspect:
        verdict = report.verdict(aspect)
        found = [
            item for item in report.findings if (item.aspect, item.verdict) == (aspect, verdict)
        ]
        first = f"{aspect:<13} {verdict:<8} "
        for part in _findings(found) or [""]:
            lines.append((first + part, _STYLES[verdict]))
            first = _INDENT
    advice = next_step(report)
    if advice:
        lines += [("", ""), *((part, "") for part in _wrap(f"next: {advice}"))]
    return lines


def _findings(found: list[Finding]) -> list[str]:
    width = WIDTH - len(_INDENT)
    parts = [
        part for item in found[:_SHOWN] for part in _wrap(f"{item.code}: {item.detail}", width)
    ]
    if len(found) > _SHOWN:
        parts.append(f"and {len(found) - _SHOWN} more; --json lists all")
    return parts


def _wrap(text: str, width: int = WIDTH) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ") or [""]
