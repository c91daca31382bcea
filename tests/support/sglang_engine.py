"""A real SGLang in processes of its own, driven over a pipe; see scripts/sglang-venv.sh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PAGE = 16

_RUNNER = """
import json, os, sys, time
def emptied(engine):
    # The answer is there a moment before the scheduler has let the request go.
    until = time.monotonic() + 60
    while not engine.flush_cache().success:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
def main():
    channel = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    options = json.loads(sys.argv[2])
    import sglang
    engine = sglang.Engine(**options)
    channel.write(json.dumps({"ready": True}) + "\\n")
    for line in sys.stdin:
        call = json.loads(line)
        if call["do"] == "flush":
            channel.write(json.dumps({"flushed": emptied(engine)}) + "\\n")
            continue
        asked = {"cache_salt": call["salt"]} if call["salt"] else {}
        answer = engine.generate(
            input_ids=call["tokens"],
            sampling_params={"temperature": 0, "max_new_tokens": call["max_tokens"],
                             "ignore_eos": True},
            return_logprob=True, **asked)
        meta = answer["meta_info"]
        channel.write(json.dumps({
            "tokens": answer["output_ids"],
            "cached": meta["cached_tokens"],
            "details": meta.get("cached_tokens_details") or {},
            "logprobs": [entry[0] for entry in meta["output_token_logprobs"]],
        }) + "\\n")
    engine.shutdown()
if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """Generated tokens with their log probabilities, and where reused prompt tokens came from."""

    tokens: list[int]
    logprobs: list[float]
    cached: int
    stored: int


def server_options(model: Path, socket: Path, **changes: object) -> dict[str, object]:
    """The options with which SGLang serves on a CPU under kvrun."""
    storage = {
        "backend_name": "kvrun",
        "module_path": "kvrun.engines.sglang.storage",
        "class_name": "KvrunStorage",
        "interface_v1": 1,
        "prefetch_threshold": PAGE,
        "kvrun.socket": str(socket),
    }
    return {
        "model_path": str(model),
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_cuda_graph": True,
        "dtype": "float32",
        "max_total_tokens": 4096,
        "page_size": PAGE,
        "mem_fraction_static": 0.3,
        "log_level": "info",
        "disable_overlap_schedule": True,
        "enable_hierarchical_cache": True,
        "hicache_ratio": 2.0,
        "hicache_mem_layout": "page_first_direct",
        "hicache_io_backend": "direct",
        "hicache_write_policy": "write_through",
        "hicache_host_memory_mode": "buffer_only",
        "radix_cache_backend": "kvrun",
        "hicache_storage_backend": "dynamic",
        "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_storage_backend_extra_config": json.dumps(storage),
        **changes,
    }


class SglangEngine:
    """One engine; ``options`` change its command line."""

    def __init__(self, model: Path, socket: Path, log: Path, **options: object) -> None:
        self._options = json.dumps(server_options(model, socket, **options))
        self.log = log
        self._start()

    def _start(self) -> None:
        read, write = os.pipe()
        runner = self.log.with_suffix(".py")
        runner.write_text(_RUNNER)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(runner), str(write), self._options],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[write],
                text=True,
                start_new_session=True,
                env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1"},
            )
        os.close(write)
        self._answers = os.fdopen(read)
        if json.loads(self._read()) != {"ready": True}:
            raise RuntimeError("the engine did not start")

    def ask(self, tokens: list[int], salt: str = "", *, max_tokens: int = 8) -> Answer:
        """Generate."""
        self._write({"do": "ask", "tokens": tokens, "salt": salt, "max_tokens": max_tokens})
        answer = json.loads(self._read())
        return Answer(
            answer["tokens"],
            answer["logprobs"],
            answer["cached"],
            int(answer["details"].get("storage", 0)),
        )

    def flush(self) -> None:
        """Empty SGLang's own cache; the daemon's blocks stay."""
        self._write({"do": "flush"})
        assert json.loads(self._read()) == {"flushed": True}

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self._start()

    def stop(self) -> None:
        """End it and every process below it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _write(self, call: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the engine ended:\n{self.log.read_text()[-6000:]}")
        return line
