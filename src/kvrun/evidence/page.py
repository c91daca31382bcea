"""``index.html``: the bundle as people read and print it. No script, nothing loaded. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from urllib.parse import quote

from kvrun.config.values import size_text
from kvrun.erasure.trust import Fingerprint
from kvrun.evidence.configuration import DeploymentConfiguration, Protection
from kvrun.evidence.controls import ControlEntry, ControlMap, State
from kvrun.evidence.logs import SEGMENTS_NAME, LogFacts
from kvrun.evidence.page_style import STYLE
from kvrun.evidence.populations import MEANING, Population
from kvrun.evidence.results import ResultFact
from kvrun.evidence.summary import Summary

_SHOWN = 200


def bundle_page(
    summary: Summary,
    controls: ControlMap,
    configurations: Sequence[DeploymentConfiguration],
    results: Sequence[ResultFact],
    keys: Sequence[Fingerprint],
    names: Sequence[str],
) -> bytes:
    """The page. ``names`` are the bundle's files."""
    style = base64.b64encode(sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    title = f"Evidence of {summary.workspace}, {summary.since} to {summary.until}"
    sections = (
        _controls(controls),
        _protection(configurations),
        _lists(summary, names),
        _logs(summary),
        _certificates(summary, names),
        _results(results),
        _keys(keys),
        _checking(summary),
        _limits(summary),
    )
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<p class="brand">kvrun</p>
<h1>Audit evidence</h1>
<p class="id">{escape(summary.workspace)}</p>
<p>From {_whole(summary.since)} up to but without {_whole(summary.until)}, days in UTC.
{_count(len(summary.deployments), "deployment")}: {escape(_names(summary))}.</p>
<p class="note">{escape(controls.statement)}</p>
</header>
{"".join(sections)}
<footer>This page is for reading. What counts are the files beside it, each of which
manifest.json names with its SHA-256 under a signature.</footer>
</main>
</body>
</html>
"""
    return page.encode()


def _controls(controls: ControlMap) -> str:
    rows = [_control(entry) for entry in controls.controls]
    head = ("Framework", "Requirement", "Evidence produced", "In this bundle", "Where")
    return _section("Controls", _table(head, rows))


def _control(entry: ControlEntry) -> list[str]:
    counted = ", ".join(f"{name.replace('_', ' ')}: {n:,}" for name, n in entry.counted.items())
    badge = _badge(entry.state.words, good=entry.state is State.PRESENT)
    where = "<br>".join(_place(name) for name in entry.files) or "nothing"
    return [
        escape(entry.framework),
        f"<strong>{escape(entry.requirement)}</strong>" + _title(entry),
        escape(entry.evidence),
        f'{badge}<br><span class="note">{escape(counted)}</span>',
        where,
    ]


def _badge(words: str, *, good: bool) -> str:
    return f'<span class="state {"present" if good else "none"}">{escape(words)}</span>'


def _title(entry: ControlEntry) -> str:
    return "" if entry.title == entry.requirement else f"<br>{escape(entry.title)}"


def _protection(configurations: Sequence[DeploymentConfiguration]) -> str:
    rows = [
        [
            escape(item.name),
            _since(item.encryption),
            _since(item.isolation),
            "<br>".join(
                f"{_whole(change.at[:10])} {escape(change.setting)}:"
                f" {escape(change.before)} to {escape(change.after)}"
                for change in item.changes[:_SHOWN]
            )
            or ("none" if item.on_record else "not on record"),
        ]
        for item in configurations
    ]
    head = ("Deployment", "Encryption", "Isolation", "Settings that changed in the period")
    note = "Neither can be turned off. configuration.json has every setting with its time."
    return _section("Protection by default", _table(head, rows, note))


def _since(protection: Protection) -> str:
    since = f"since {protection.since[:10]}" if protection.since else "since when is not on record"
    return f"on by default,<br>{escape(since)}"


def _lists(summary: Summary, names: Sequence[str]) -> str:
    rows = [
        [
            _link(item.file, item.value),
            f"{summary.rows.get(item.value, 0):,}",
            escape(MEANING[item]),
        ]
        for item in Population
    ]
    note = (
        f"A sample of {summary.sample:,} records was drawn with the seed {summary.seed!r} from all "
        f"records of the segments below; each has an inclusion proof in its log's sample.jsonl."
    )
    if any("/policy/" in name for name in names):
        note += (
            " The policy repository up to the revisions that were in force is in"
            " deployments/*/policy/, as Git bundles to clone."
        )
    return _section("Populations", _table(("List", "Rows", "What it holds"), rows, note))


def _logs(summary: Summary) -> str:
    rows = [_log(log) for log in summary.logs]
    if not rows:
        return _section("Audit logs", "<p>No log has a record of this period.</p>")
    head = ("Log", "Records in the period", "Segments", "Collected up to")
    whole = (
        "The segments are in the bundle."
        if summary.full
        else ("The segments are named by digest; an export with --full has them too.")
    )
    note = f"{whole} Segments are whole, so they begin before and end after the period."
    return _section("Audit logs", _table(head, rows, note))


def _log(log: LogFacts) -> list[str]:
    state = "" if log.closed else '<br><span class="note">later records may follow</span>'
    return [
        _link(f"{log.folder}/{SEGMENTS_NAME}", log.log),
        f"{log.records:,}",
        f"{log.segments:,}, {escape(size_text(log.size_bytes))}<br>"
        f'<span class="note">records {log.first:,} to {log.end - 1:,}</span>',
        escape(log.through[:19]) + state,
    ]


def _certificates(summary: Summary, names: Sequence[str]) -> str:
    found = [name for name in names if "/certificates/" in name]
    waiting = sum(item.open_requests for item in summary.certificates)
    said = f"<p>{_count(len(found), 'certificate')} issued in the period; "
    said += f"{_count(waiting, 'request')} without one at its end.</p>"
    items = "".join(f"<li>{_link(name, name.rpartition('/')[2])}</li>" for name in found[:_SHOWN])
    more = len(found) - _SHOWN
    if more > 0:
        items += f"<li>and {more:,} more: see {_link(Population.ERASURE_REQUESTS.file)}</li>"
    return _section(
        "Erasure certificates", said + (f'<ul class="files">{items}</ul>' if items else "")
    )


def _results(results: Sequence[ResultFact]) -> str:
    title = "Isolation self-tests and evaluations"
    if not results:
        return _section(title, "<p>None was made in the period.</p>")
    rows = [
        [
            _whole(item.at[:19].replace("T", " ")),
            escape(item.about),
            f"{_badge(item.what, good=item.good)}<br>{escape(item.said)}",
            _link(item.file).replace(".json<", "<wbr>.json<"),
        ]
        for item in results[:_SHOWN]
    ]
    more = len(results) - _SHOWN
    note = f"And {more:,} more, in isolation/ and finetunes/." if more > 0 else ""
    return _section(title, _table(("When (UTC)", "Of", "Result", "File"), rows, note))


def _keys(keys: Sequence[Fingerprint]) -> str:
    rows = [
        [
            f"{escape(key.what)}<br><span class='note'>{escape(key.name)}</span>",
            f"<code>{escape(key.fingerprint)}</code>",
            _whole(key.validity),
        ]
        for key in keys
    ]
    note = (
        "Compare fingerprints with the operator's, on another way than this bundle came. Until "
        "then the bundle shows that it is whole, and not who made it."
    )
    return _section(
        "Public keys", _table(("Key", "SHA-256 of the public key", "Valid"), rows, note)
    )


def _checking(summary: Summary) -> str:
    return _section(
        "How to check it",
        """<ol>
<li>With kvrun, on any machine: <code>kvrun verify evidence.zip --trust anchor.json</code>. One
table, and status 0 when nothing failed under keys that you trust; 1 when something failed; 2 when
nothing failed and the keys were only taken from the bundle.</li>
<li><code>anchor.json</code> is what the operator gave you; <code>keys/trust-anchor.json</code> is
the same in this bundle, to compare by fingerprint: <code>kvrun trust show FILE</code>.</li>
<li>Without kvrun: <code>python verify/kvrun_verify.py deployments/D/certificates/ID.json --trust
anchor.json</code> needs Python and its package cryptography; <code>verify/verify.html</code> needs
a browser and no network.</li>
<li>The formats are in <code>schema/</code>. <code>sha256sum</code> gives the digests that
manifest.json states.</li>
</ol>""",
    )


def _limits(summary: Summary) -> str:
    items = [
        "Counts come from tallies that the collector made of segments which it had verified. Who "
        "has the segments can count again; a bundle with --full brings them.",
        "Times are those of the machines that wrote the records.",
        "What happened after the period is left out, also where it is known by now.",
    ]
    items += [
        f"{log.log} was collected up to {log.through[:19]}: later records of the period are not "
        "here."
        for log in summary.open_logs
    ]
    unreadable = [name for item in summary.certificates for name in item.unreadable]
    if unreadable:
        items.append(f"Files among the certificates that are none: {', '.join(unreadable[:20])}.")
    body = "".join(f"<li>{escape(item)}</li>" for item in items)
    return _section("What it does not say", f"<ul>{body}</ul>")


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-label="{escape(name)}"><div>{cell}</div></td>'
            for name, cell in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _place(name: str) -> str:
    """A file is a link; a folder is only named, since what it is called varies."""
    return f"<code>{_breakable(name)}</code>" if name.endswith("/") else _link(name)


def _link(name: str, shown: str = "") -> str:
    return f'<a href="{escape(quote(name, safe="/"))}">{_breakable(shown or name)}</a>'


def _breakable(name: str) -> str:
    """A file's name that may go on in the next line after a slash, and nowhere else."""
    return escape(name).replace("/", "/<wbr>")


def _whole(text: str) -> str:
    """A text that stays in one line."""
    return f'<span class="whole">{escape(text)}</span>'


def _names(summary: Summary) -> str:
    shown = [name for _, name in summary.deployments[:20]]
    more = len(summary.deployments) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
