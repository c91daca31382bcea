"""A certificate as a PDF to file and print. Needs the extra ``kvrun[pdf]``.

The PDF's built-in fonts know Western European characters only; any other is written as its
code point, such as <U+5C71>, so that nothing is silently lost.
"""

from datetime import UTC, datetime

from kvrun.audit.verdict import Verdict
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.report import CertificateReport
from kvrun.erasure.view import Facts, Items, Section, Table, certificate_view

try:
    from fpdf import FPDF
    from fpdf.enums import TableBordersLayout, TextEmphasis, XPos, YPos
    from fpdf.fonts import FontFace
except ImportError as error:  # pragma: no cover
    raise ErasureError(
        "PDF pages need the package fpdf2", hint="Install it with `pip install 'kvrun[pdf]'`."
    ) from error


def certificate_pdf(report: CertificateReport, *, now: float) -> bytes:
    """The PDF of a checked certificate. ``now`` in seconds since 1970; the same input gives the
    same bytes.

    Raises ErasureError when nothing could be read from it.
    """
    if report.statement is None:
        raise ErasureError("a certificate that cannot be read cannot be shown")
    view = certificate_view(report, report.statement, now=now)
    page = _Page(_plain(view.footer))
    page.set_title(_plain(f"{view.title} {view.id}"))
    page.set_creation_date(datetime.fromtimestamp(now, UTC))
    page.add_page()
    page.put("kvrun", 10, grey=True, bold=True)
    page.put(view.title, 20, bold=True)
    page.put(view.id, 10, grey=True)
    page.ln(2)
    page.put(view.state, 12, bold=True, colour=_COLOURS[view.verdict])
    page.ln(1)
    page.put(view.summary, 11)
    for section in view.sections:
        _section(page, section)
    return bytes(page.output())


class _Page(FPDF):
    def __init__(self, footer: str) -> None:
        super().__init__(format="A4", unit="mm")
        self._footer = footer
        self.set_margins(18, 18, 18)
        self.set_auto_page_break(True, margin=24)

    def footer(self) -> None:
        self.set_y(-19)
        self.set_font("Helvetica", size=7.5)
        self.set_text_color(90)
        self.multi_cell(0, 3.6, f"{self._footer}\nPage {self.page_no()}", align="L")

    def put(
        self,
        text: str,
        size: float,
        *,
        bold: bool = False,
        grey: bool = False,
        colour: tuple[int, int, int] = (20, 26, 38),
    ) -> None:
        self.set_font("Helvetica", style="B" if bold else "", size=size)
        self.set_text_color(*((90, 98, 112) if grey else colour))
        height = size * 0.45
        self.multi_cell(0, height, _plain(text), new_x=XPos.LMARGIN, new_y=YPos.NEXT, align="L")


def _section(page: _Page, section: Section) -> None:
    page.ln(4)
    if page.will_page_break(20):
        page.add_page()
    page.put(section.title, 12, bold=True)
    page.ln(1)
    match section:
        case Facts():
            _rows(page, section.rows, (32, 100), labelled=True)
        case Items():
            _rows(page, tuple(("-", row) for row in section.rows), (4, 128), labelled=True)
        case Table():
            _rows(page, section.rows, _WIDTHS[len(section.columns)], head=section.columns)
            if section.note:
                page.ln(1)
                page.put(section.note, 9, grey=True)


def _rows(
    page: _Page,
    rows: tuple[tuple[str, ...], ...],
    widths: tuple[int, ...],
    *,
    head: tuple[str, ...] = (),
    labelled: bool = False,
) -> None:
    page.set_font("Helvetica", size=9)
    page.set_text_color(20, 26, 38)
    page.set_draw_color(205, 211, 220)
    grey = FontFace(color=(90, 98, 112))
    with page.table(
        col_widths=widths,
        first_row_as_headings=bool(head),
        headings_style=FontFace(emphasis=TextEmphasis.NONE, color=(90, 98, 112)),
        borders_layout=TableBordersLayout.HORIZONTAL_LINES if head else TableBordersLayout.NONE,
        line_height=4.4,
        padding=(0.7, 1.5, 0.7, 0),
        text_align="L",
        wrapmode="CHAR" if head == () and not labelled else "WORD",
    ) as listing:
        for row in (head, *rows) if head else rows:
            line = listing.row()
            for place, cell in enumerate(row):
                style = grey if labelled and place == 0 else _style(cell)
                line.cell(_plain(cell), style=style)


def _style(cell: str) -> FontFace | None:
    if cell not in ("pass", "fail", "unknown", "skipped"):
        return None
    verdict = Verdict(cell) if cell != "skipped" else Verdict.UNKNOWN
    return FontFace(emphasis=TextEmphasis.B, color=_COLOURS[verdict])


def _plain(text: str) -> str:
    return "".join(
        char if char == "\n" or (char.isprintable() and ord(char) < 256) else f"<U+{ord(char):04X}>"
        for char in text
    )


_COLOURS = {
    Verdict.PASS: (18, 104, 58),
    Verdict.FAIL: (163, 23, 31),
    Verdict.UNKNOWN: (122, 77, 0),
}
_WIDTHS = {2: (60, 72), 3: (26, 22, 84), 4: (46, 20, 40, 40)}
