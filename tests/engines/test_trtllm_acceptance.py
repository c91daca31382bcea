"""scripts/trtllm-acceptance, with the simulated executor in TensorRT-LLM's place.

It shows that the script works, and that it notices what it is there for; not TensorRT-LLM.
"""

from __future__ import annotations

import importlib
import os
import sys
import zlib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

pytest.importorskip("torch")
pytest.importorskip("blake3")

from kvrun.conformance.run import NAMES
from kvrun.engines.checked import CheckRecord
from support.executor import Executor, llm_args

SCRIPT = Path(__file__).parents[2] / "scripts" / "trtllm-acceptance"
CHARACTERS_A_TOKEN = 40


class SimulatedLLM:
    """``tensorrt_llm.LLM`` as far as the script uses it."""

    leaks = False
    made: ClassVar[list[SimulatedLLM]] = []

    def __init__(self, model: str, kv_connector_config: Any, **options: Any) -> None:
        module = importlib.import_module(kv_connector_config.connector_module)
        args = llm_args(model)
        worker = getattr(module, kv_connector_config.connector_worker_class)(args)
        scheduler = getattr(module, kv_connector_config.connector_scheduler_class)(args)
        self._executor = Executor(scheduler, worker, newer=True, blocks=128)
        self.close = scheduler.close
        self.made.append(self)

    def generate(self, text: str, sampling: Any, cache_salt: str | None = None) -> SimpleNamespace:
        ends = range(CHARACTERS_A_TOKEN, len(text), CHARACTERS_A_TOKEN)
        tokens = [sum(text[end - CHARACTERS_A_TOKEN : end].encode()) for end in ends]
        answer = self._executor.generate(tokens, salt=cache_salt, new=sampling.max_tokens).tokens
        if self.leaks and cache_salt:
            answer = [*answer[:-1], zlib.crc32(cache_salt.encode())]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=answer)])


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = SourceFileLoader("trtllm_acceptance", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("right", [pytest.param(True, marks=pytest.mark.long), False])
def test_the_acceptance_run_says_what_was_met_by_the_names_of_the_checks(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    right: bool,
) -> None:
    simulated, api, args = (ModuleType(name) for name in ("tensorrt_llm", "api", "args"))
    simulated.__version__ = "1.2.1 (simulated)"  # type: ignore[attr-defined]
    simulated.LLM = SimulatedLLM  # type: ignore[attr-defined]
    simulated.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    api.KvCacheConfig = args.KvCacheConnectorConfig = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt_llm", simulated)
    monkeypatch.setitem(sys.modules, "tensorrt_llm.llmapi", api)
    monkeypatch.setitem(sys.modules, "tensorrt_llm.llmapi.llm_args", args)
    monkeypatch.setattr(SimulatedLLM, "leaks", not right)
    monkeypatch.setattr(os, "environ", {**os.environ, "TLLM_KVRUN_MODEL_FINGERPRINT": "33" * 32})
    written = tmp_path / "tensorrt-llm.json"
    try:
        status = script.main(["model", str(written)])
    finally:
        SimulatedLLM.made.pop().close()
    record = msgspec.json.decode(written.read_bytes(), type=CheckRecord)
    met = {row.check: row.met for row in record.rows}
    assert "interface-checked, not yet run on TensorRT-LLM" in caplog.text
    assert record.engine == "tensorrt-llm"
    assert len(met) == 5
    assert set(met) <= set(NAMES)
    # Reuse is no less than it was; every other check compares answers.
    failed = set() if right else set(met) - {"same-session-reuse"}
    assert {check for check in met if not met[check]} == failed
    assert status == (0 if right else 1)


def test_without_tensorrt_llm_it_says_so(script: ModuleType) -> None:
    assert script.main(["model"]) == 3
    assert script.main([]) == 2
