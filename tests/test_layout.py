"""The packages' order: an import points down or stays inside, and every module says what it is."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvrun

SOURCE = Path(__file__).parents[1] / "src" / "kvrun"
LAYERS = (
    {"directread", "durable", "errors", "filelock", "memlock", "process"},
    {"models", "config", "storage", "state", "client", "telemetry", "git", "unixsocket"},
    {"seal", "audit"},
    {"claims"},
    {"policy"},
    {"keys"},
    {"cache"},
    {"erasure"},
    {"statements"},
    {"instance", "finetune"},
    {"engines"},
    {"gateway"},
    {"control"},
    {"launch"},
    {"isolation"},
    {"accounts", "deployments"},
    {"evidence"},
    {"api"},
    {"console"},
    {"demo"},
    {"bench", "conformance"},
    {"cli"},
    {"__main__"},
)
"""Lowest first; packages of one layer do not import each other."""

FILES = sorted(SOURCE.rglob("*.py"))


def _module(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module(file): file for file in FILES}


def _imports(file: Path) -> Iterator[str]:
    """The modules of kvrun that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("kvrun."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kvrun":
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in MODULES else str(node.module)


def _layer(module: str) -> int:
    package = module.split(".")[1]
    return next(number for number, packages in enumerate(LAYERS) if package in packages)


def test_every_package_has_its_place_in_the_order() -> None:
    packages = {module.split(".")[1] for module in MODULES if module != "kvrun"}
    assert packages == set().union(*LAYERS)


@pytest.mark.parametrize("file", FILES, ids=_module)
def test_no_import_points_up(file: Path) -> None:
    module = _module(file)
    if module == "kvrun":
        assert list(_imports(file)) == []
        return
    upward = [
        target
        for target in _imports(file)
        if target != "kvrun"
        and target.split(".")[1] != module.split(".")[1]
        and _layer(target) >= _layer(module)
    ]
    assert upward == [], f"{module} imports {', '.join(upward)}"


def test_seal_and_audit_know_nothing_but_errors() -> None:
    for package in ("seal", "audit"):
        for file in (SOURCE / package).glob("*.py"):
            known = {target.split(".")[1] for target in _imports(file)}
            assert known <= {package, "errors"}, f"{_module(file)} imports {sorted(known)}"


@pytest.mark.parametrize(
    "module",
    [
        "kvrun.gateway.server",
        "kvrun.gateway.middleware",
        "kvrun.engines.vllm.connector",
        "kvrun.engines.sglang.radixcache",
        "kvrun.engines.tensorrt_llm.connector",
    ],
)
def test_what_is_outside_the_daemon_holds_no_code_for_keys_or_blocks(module: str) -> None:
    reached: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in MODULES and name not in reached:
            reached.add(name)
            todo += _imports(MODULES[name])
    inside = {
        name
        for name in reached - {"kvrun"}
        if name.split(".")[1] in ("seal", "keys", "cache", "audit")
    }
    assert inside == set()


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {module: set(_imports(file)) - {module} for module, file in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a circle: {' -> '.join((*path, module))}"
        if module not in done:
            for target in graph.get(module, ()):
                visit(target, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("file", FILES, ids=_module)
def test_every_module_says_what_it_is(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", FILES, ids=_module)
def test_no_module_grows_beyond_400_lines(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


def test_the_package_has_one_version() -> None:
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == kvrun.__version__
