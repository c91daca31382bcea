"""A real vLLM in a process of its own, driven over a pipe: generate, reset, stop, kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.memory import family

_RUNNER = '''
import json, os, sys
def pages(worker):
    """64 bytes out of every page of the first layer that holds something."""
    import torch
    first = worker.model_runner.kv_caches[0]
    rows = first.reshape(first.shape[0], -1).view(torch.uint8)
    half = rows.shape[1] // 2
    return [bytes(row[half - 32:half + 32].tolist()).hex() for row in rows if row.any()]
def main():
    # Worker processes import this file too; only the first one has the pipe.
    channel = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    options = json.loads(sys.argv[2])
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    transfer = options.pop("transfer")
    if transfer is not None:
        options["kv_transfer_config"] = KVTransferConfig(**transfer)
    llm = LLM(**options)
    channel.write(json.dumps({"ready": True}) + "\\n")
    for line in sys.stdin:
        call = json.loads(line)
        if call["do"] == "reset":
            channel.write(json.dumps({"reset": llm.reset_prefix_cache()}) + "\\n")
            continue
        if call["do"] == "counters":
            found = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
            channel.write(json.dumps(found) + "\\n")
            continue
        if call["do"] == "pages":
            channel.write(json.dumps(llm.collective_rpc(pages)[0]) + "\\n")
            continue
        prompts, params = [], []
        for item in call["items"]:
            prompt = {"prompt_token_ids": item["tokens"]}
            if item["salt"]:
                prompt["cache_salt"] = item["salt"]
            claim = {"kvrun_claim": item["claim"]}
            extra = {"kv_transfer_params": claim} if item["claim"] else None
            prompts.append(prompt)
            params.append(SamplingParams(temperature=0, max_tokens=item["max_tokens"],
                                         ignore_eos=True, logprobs=0, extra_args=extra))
        outputs = llm.generate(prompts, params, use_tqdm=False)
        channel.write(json.dumps([{
            "tokens": list(o.outputs[0].token_ids),
            "cached": o.num_cached_tokens,
            "logprob": o.outputs[0].cumulative_logprob,
        } for o in outputs]) + "\\n")
if __name__ == "__main__":
    main()
'''


@dataclass(frozen=True, slots=True)
class Answer:
    """Generated tokens, prompt tokens that were not computed, and the answer's log probability."""

    tokens: list[int]
    cached: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the engine."""

    tokens: list[int]
    salt: str = ""
    claim: str = ""
    max_tokens: int = 8


class Engine:
    """One engine; ``socket`` None starts it without kvrun, ``transfer`` changes its connector."""

    def __init__(
        self,
        model: Path,
        socket: Path | None,
        log: Path,
        *,
        environment: dict[str, str] | None = None,
        transfer: dict[str, object] | None = None,
        **options: object,
    ) -> None:
        settings: dict[str, object] = {
            "model": str(model),
            "max_model_len": 8192,
            "max_num_seqs": 8,
            "kv_cache_memory_bytes": 256 * 2**20,
            "enforce_eager": True,
            "dtype": "float32",
            "disable_log_stats": False,
            "prefix_caching_hash_algo": "sha256_cbor",
        }
        settings.update(options)
        settings["transfer"] = None
        if socket is not None:
            settings["transfer"] = {
                "kv_connector": "KvrunConnector",
                "kv_connector_module_path": "kvrun.engines.vllm.connector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"kvrun.socket": str(socket)},
                **(transfer or {}),
            }
        self._settings = json.dumps(settings)
        self._environment = environment or {}
        self.log = log
        self._start()

    def _start(self) -> None:
        read, write = os.pipe()
        log = self.log
        runner = log.with_suffix(".py")
        runner.write_text(_RUNNER)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(runner), str(write), self._settings],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[write],
                text=True,
                env={
                    **os.environ,
                    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                    "VLLM_CPU_OMP_THREADS_BIND": ",".join(
                        map(str, sorted(os.sched_getaffinity(0)))
                    ),
                    "VLLM_NO_USAGE_STATS": "1",
                    **self._environment,
                },
            )
        os.close(write)
        self._answers = os.fdopen(read)
        if json.loads(self._read()) != {"ready": True}:
            raise RuntimeError("the engine did not start")

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """The engine's process and those below it."""
        return family(self.pid)

    def ask(self, *asks: Ask) -> list[Answer]:
        """Generate for all of these at once."""
        self.send(*asks)
        return self.receive()

    def send(self, *asks: Ask) -> None:
        """Begin to generate; ``receive`` waits for the answers."""
        items = [
            {"tokens": a.tokens, "salt": a.salt, "claim": a.claim, "max_tokens": a.max_tokens}
            for a in asks
        ]
        self._write({"do": "generate", "items": items})

    def receive(self) -> list[Answer]:
        """The answers of the last ``send``."""
        return [Answer(a["tokens"], a["cached"], a["logprob"]) for a in json.loads(self._read())]

    def reset(self) -> None:
        """Empty vLLM's own prefix cache; the daemon's blocks stay."""
        self._write({"do": "reset"})
        assert json.loads(self._read()) == {"reset": True}

    def restart(self) -> None:
        """Stop it and start it again with the same settings."""
        self.stop()
        self._start()

    def start_again(self) -> None:
        """Start it after it was killed."""
        self._start()

    def counters(self) -> dict[str, float]:
        """vLLM's counters and gauges."""
        self._write({"do": "counters"})
        found: dict[str, float] = json.loads(self._read())
        return found

    def pages(self) -> list[bytes]:
        """64 bytes from the middle of every KV page of the first layer that is not empty."""
        self._write({"do": "pages"})
        return [bytes.fromhex(page) for page in json.loads(self._read())]

    def stop(self) -> None:
        """End it as an operator would."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _write(self, call: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the engine ended:\n{self.log.read_text()[-4000:]}")
        return line
