"""A certificate as one HTML page: no script, nothing loaded, made to be read and printed. Pure."""

from html import escape

from kvrun.erasure.errors import ErasureError
from kvrun.erasure.report import CertificateReport
from kvrun.erasure.view import Facts, Items, Section, Table, certificate_view


def certificate_html(report: CertificateReport, *, now: float) -> bytes:
    """The page of a checked certificate. ``now`` in seconds since 1970.

    Raises ErasureError when nothing could be read from it.
    """
    if report.statement is None:
        raise ErasureError("a certificate that cannot be read cannot be shown")
    view = certificate_view(report, report.statement, now=now)
    body = "".join(map(_section, view.sections))
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(view.title)} {escape(view.id)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
<p class="brand">kvrun</p>
<h1>{escape(view.title)}</h1>
<p class="id">{escape(view.id)}</p>
<p class="state {escape(view.verdict.value)}">{escape(view.state)}</p>
<p class="summary">{escape(view.summary)}</p>
</header>
{body}
<footer>{escape(view.footer)}</footer>
</main>
</body>
</html>
"""
    return page.encode()


def _section(section: Section) -> str:
    match section:
        case Facts():
            rows = "".join(
                f"<dt>{escape(label)}</dt><dd>{escape(value)}</dd>" for label, value in section.rows
            )
            inner = f"<dl>{rows}</dl>"
        case Items():
            inner = "<ul>" + "".join(f"<li>{escape(row)}</li>" for row in section.rows) + "</ul>"
        case Table():
            inner = _table(section)
    return f"<section><h2>{escape(section.title)}</h2>{inner}</section>\n"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    lines = []
    for row in table.rows:
        cells = "".join(
            f'<td data-label="{escape(name)}"{_mark(cell)}>{escape(cell)}</td>'
            for name, cell in zip(table.columns, row, strict=True)
        )
        lines.append(f"<tr>{cells}</tr>")
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>{note}"


def _mark(cell: str) -> str:
    return f' class="{cell}"' if cell in ("pass", "fail", "unknown", "skipped") else ""


_STYLE = """
:root { --ink: #1b2230; --soft: #566072; --line: #dbe0e8; --paper: #fff; --ground: #f3f5f8;
  --good: #12683a; --goodbg: #e2f4e8; --bad: #a3171f; --badbg: #fde7e7; --open: #7a4d00;
  --openbg: #fdf1d8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf1; --soft: #a3adbd; --line: #333c4b; --paper: #171c25; --ground: #0e1218;
    --good: #7fdca0; --goodbg: #12331f; --bad: #ff9c9c; --badbg: #431a1c; --open: #f2c772;
    --openbg: #3b2d10; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 52rem; margin: 2rem auto; padding: 2.5rem 3rem; background: var(--paper);
  border: 1px solid var(--line); border-radius: 12px; }
.brand { margin: 0; color: var(--soft); font-weight: 600; letter-spacing: .04em; }
h1 { margin: .2rem 0 0; font-size: 1.9rem; line-height: 1.2; }
h2 { margin: 2rem 0 .6rem; font-size: 1.05rem; }
.id { margin: .2rem 0 1rem; color: var(--soft); font-family: ui-monospace, monospace;
  overflow-wrap: anywhere; }
.state { display: inline-block; margin: 0; padding: .35rem .8rem; border-radius: 999px;
  font-weight: 600; }
.state.pass { color: var(--good); background: var(--goodbg); }
.state.fail { color: var(--bad); background: var(--badbg); }
.state.unknown { color: var(--open); background: var(--openbg); }
.summary { margin: 1rem 0 0; font-size: 1.05rem; }
dl { display: grid; grid-template-columns: minmax(8rem, 11rem) 1fr; gap: .4rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
table { width: 100%; border-collapse: collapse; }
th { text-align: left; color: var(--soft); font-weight: 500; white-space: nowrap; }
th, td { padding: .45rem .8rem .45rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
td.pass { color: var(--good); font-weight: 600; } td.fail { color: var(--bad); font-weight: 600; }
td.unknown, td.skipped { color: var(--open); font-weight: 600; }
ul { margin: 0; padding-left: 1.2rem; } .note, footer { color: var(--soft); font-size: .9rem; }
footer { margin-top: 2.5rem; padding-top: 1rem; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  main { margin: 0; padding: 1.25rem; border: 0; border-radius: 0; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .6rem; }
  thead { position: absolute; left: -9999px; } tr { display: block; padding: .5rem 0;
    border-bottom: 1px solid var(--line); }
  td { display: grid; grid-template-columns: 6.5rem 1fr; gap: .5rem; padding: .1rem 0; border: 0; }
  td:first-child { display: block; font-weight: 600; }
  td:empty { display: none; }
  td:not(:first-child)::before { content: attr(data-label); color: var(--soft);
    font-weight: 400; } }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --ground: #fff; --good: #12683a;
    --bad: #a3171f; --open: #7a4d00; --goodbg: #fff; --badbg: #fff; --openbg: #fff; }
  main { margin: 0; padding: 0; border: 0; max-width: none; } body { font-size: 10.5pt; }
  .state { border: 1px solid currentColor; } tr, dt, dd, li { break-inside: avoid; }
  h2 { break-after: avoid; } @page { margin: 18mm; } }
"""
