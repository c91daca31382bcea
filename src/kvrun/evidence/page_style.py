"""The style of a bundle's page: narrow and wide screens, dark, and paper."""

STYLE = """
:root { --ink: #1b2230; --soft: #566072; --line: #dbe0e8; --paper: #fff; --ground: #f3f5f8;
  --link: #1d4ed8; --good: #12683a; --goodbg: #e2f4e8; --open: #7a4d00; --openbg: #fdf1d8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf1; --soft: #a3adbd; --line: #333c4b; --paper: #171c25; --ground: #0e1218;
    --link: #9db8ff; --good: #7fdca0; --goodbg: #12331f; --open: #f2c772; --openbg: #3b2d10; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 2rem auto; padding: 2.5rem 3rem; background: var(--paper);
  border: 1px solid var(--line); border-radius: 12px; }
a { color: var(--link); overflow-wrap: break-word; }
code { font: .86em/1.5 ui-monospace, monospace; overflow-wrap: break-word; }
.brand { margin: 0; color: var(--soft); font-weight: 600; letter-spacing: .04em; }
h1 { margin: .2rem 0 0; font-size: 1.9rem; line-height: 1.2; }
h2 { margin: 2.2rem 0 .6rem; font-size: 1.15rem; }
.id { margin: .2rem 0 1rem; color: var(--soft); font-family: ui-monospace, monospace;
  overflow-wrap: anywhere; }
.note, footer { color: var(--soft); font-size: .9em; }
.whole { white-space: nowrap; }
.state { display: inline-block; white-space: nowrap; padding: .1rem .6rem; border-radius: 999px;
  font-weight: 600; border: 1px solid transparent; }
.state.present { color: var(--good); background: var(--goodbg); }
.state.none { color: var(--open); background: var(--openbg); }
table { width: 100%; border-collapse: collapse; }
th { text-align: left; color: var(--soft); font-weight: 500; white-space: nowrap; }
th, td { padding: .5rem .9rem .5rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: break-word; }
ul, ol { margin: 0; padding-left: 1.2rem; } li { margin: .2rem 0; }
ul.files { columns: 18rem; font-size: .9rem; } ul.files li { margin: 0; }
footer { margin-top: 2.5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
@media (max-width: 48rem) {
  main { margin: 0; padding: 1.25rem; border: 0; border-radius: 0; }
  thead { position: absolute; left: -9999px; }
  tr { display: block; padding: .6rem 0; border-bottom: 1px solid var(--line); }
  td { display: grid; grid-template-columns: 7rem 1fr; gap: .5rem; padding: .15rem 0; border: 0; }
  td > div { min-width: 0; }
  td::before { content: attr(data-label); color: var(--soft); } }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --ground: #fff; --link: #000;
    --good: #12683a; --open: #7a4d00; --goodbg: #fff; --openbg: #fff; }
  main { margin: 0; padding: 0; border: 0; max-width: none; } body { font-size: 9.5pt; }
  .state { border-color: currentColor; } tr, li { break-inside: avoid; }
  h2 { break-after: avoid; } table + .note { break-before: avoid; }
  thead { display: table-header-group; } @page { margin: 16mm; } }
"""
