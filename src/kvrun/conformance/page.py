"""What the engines' pages say of their checks, made from the records in ``docs/engine-checks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvrun.conformance.run import ALL
from kvrun.engines.checked import CheckRecord, recorded

PAGES: Mapping[str, Sequence[str]] = {
    "engines.md": ("vllm", "llama.cpp", "sglang"),
    "engines-sglang.md": ("sglang",),
    "engines-tensorrt-llm.md": ("tensorrt-llm",),
}
"""The pages below ``docs`` that hold the section, and whose checks each shows."""

BEGIN = "<!-- engine checks: written by scripts/write_pages.py -->"
END = "<!-- end of engine checks -->"
_NOT_STARTED = (
    "; interface-checked, not yet run on TensorRT-LLM, which `kvrun engine check` does not start"
)
_NAMES = {
    "vllm": "vLLM",
    "llama.cpp": "llama.cpp",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
}


def with_checks(page: str, engines: Sequence[str]) -> str:
    """``page`` with its section on checks made anew. Raises ValueError where it has none."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN if not begin else END}")
    section = checks_section([(name, recorded(name)) for name in engines])
    return f"{head}{BEGIN}\n{section}{END}{tail}"


def checks_section(engines: Sequence[tuple[str, CheckRecord | None]]) -> str:
    """A line an engine on what was checked when, and a table, a row a check."""
    lines = [_said(name, record) for name, record in engines]
    names = [_NAMES[name] for name, _ in engines]
    rows = [["check", "what must hold", *names], ["---"] * (2 + len(names))]
    for name, check in ALL.items():
        results = [_result(record, name) for _, record in engines]
        rows.append([f"`{name}`", _meaning(check.__doc__), *results])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join(lines) + f"\n\n{table}\n"


def _said(name: str, record: CheckRecord | None) -> str:
    if record is None:
        why = _NOT_STARTED if name == "tensorrt-llm" else ""
        return f"* {_NAMES[name]}: not run{why}."
    results = [record.met(check) for check in ALL]
    missing = results.count(None)
    left = f", {missing} not run" if missing else ""
    return (
        f"* {_NAMES[name]}: {record.version}, {record.date}: {results.count(True)} of {len(ALL)}"
        f" checks met{left}. Commit {record.commit}, {record.machine};"
        f" `{_command(name)}`, kept as [JSON](engine-checks/{name}.json)."
    )


def _command(name: str) -> str:
    if name == "tensorrt-llm":
        return "scripts/trtllm-acceptance"
    return f"kvrun engine check --engine {name}"


def _meaning(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0].replace("|", "\\|")


def _result(record: CheckRecord | None, check: str) -> str:
    met = None if record is None else record.met(check)
    return "not run" if met is None else "met" if met else "**not met**"
