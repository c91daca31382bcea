"""The demo's story: nine steps, each with what must hold, checked on answers and real counters."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvrun.audit.files import read_keys, verify_files
from kvrun.audit.note import VerifierKey
from kvrun.audit.segment import CHECKPOINT_NAME, SIGNER_NAME
from kvrun.audit.verdict import Aspect
from kvrun.audit.verify import Trust
from kvrun.demo.text import long_text
from kvrun.errors import KvrunError
from kvrun.launch.client import Completion
from kvrun.launch.processes import ENGINE, INSTANCE
from kvrun.launch.stack import Stack

PROMPT_CHARACTERS = 12_500
FIRST_ANSWER_TOKENS = 160
ANSWER_TOKENS = 32
_QUESTION = "\n\nIn short, the rules above mean that"
_FOLLOW_UP = "\n\nThe second rule to remember is that"


class StoryError(KvrunError):
    """A step of the demo did not hold."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request as the final table shows it."""

    step: str
    tenant: str
    prompt_tokens: int
    reused_tokens: int
    tier: str
    ttft_s: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step showed; a step without a request has no row."""

    title: str
    shown: str
    row: Row | None


class Story:
    """Plays the steps on a stack. Each step raises StoryError when it does not hold."""

    def __init__(self, stack: Stack, restart: Callable[..., None]) -> None:
        self._stack = stack
        self._log_keys: tuple[VerifierKey, ...] = ()
        self._remembered = b""
        self._restart = restart
        self._warm = "engine memory" if stack.options.engine == "vllm" else "memory"
        self._prompt = long_text(PROMPT_CHARACTERS) + _QUESTION
        self._first: Completion | None = None

    def steps(self) -> list[tuple[str, Callable[[], StepResult]]]:
        """Title and action of each step, in order."""
        return [
            ("alice sends a long prompt", self.cold),
            ("alice sends it again", self.engine_memory),
            ("bob sends the same bytes", self.other_tenant),
            ("alice asks a second question", self.second_turn),
            ("the engine is restarted", self.memory_tier),
            ("daemon and engine are restarted", self.persistent_tier),
            ("one byte of a stored block is flipped", self.damaged_block),
            ("alice's session is erased", self.erased),
            ("the audit log is verified", self.verified_log),
        ]

    def cold(self) -> StepResult:
        """Nothing to reuse yet."""
        answer = self._ask("alice", self._prompt, FIRST_ANSWER_TOKENS)
        _require(answer.prompt_tokens > 2000, f"the prompt has {answer.prompt_tokens} tokens")
        _require(answer.cached_tokens == 0, "a first request reused something")
        self._first = answer
        return self._result("1 cold", "alice", answer, "computed", "")

    def engine_memory(self) -> StepResult:
        """What the engine keeps itself, under alice's salt; llama.cpp's slots keep nothing."""
        answer = self._repeat("alice")
        reuse = self._stack.reuse(answer.request_id)
        kept = reuse.engine_tokens if self._warm == "engine memory" else reuse.memory_tokens
        _require(kept > answer.prompt_tokens * 3 // 4, f"reused {reuse}")
        return self._result("2 again", "alice", answer, "same answer, reused", self._warm)

    def other_tenant(self) -> StepResult:
        """Byte-identical text of another tenant."""
        answer = self._repeat("bob")
        _require(answer.cached_tokens == 0, f"bob reused {answer.cached_tokens} of alice's tokens")
        return self._result("3 bob", "bob", answer, "same answer, nothing reused", "")

    def second_turn(self) -> StepResult:
        """The first turn's answer is in the cache too."""
        first = self._first_answer()
        prompt = self._prompt + first.text + _FOLLOW_UP
        answer = self._ask("alice", prompt, ANSWER_TOKENS)
        _require(
            answer.cached_tokens > first.prompt_tokens,
            f"{answer.cached_tokens} tokens reused, the first prompt alone has "
            f"{first.prompt_tokens}",
        )
        return self._result("4 turn two", "alice", answer, "answer reused too", self._warm)

    def memory_tier(self) -> StepResult:
        """The daemon still holds the sealed blocks."""
        self._restart(stop=(ENGINE,), start=(ENGINE,))
        answer = self._repeat("alice")
        reuse = self._stack.reuse(answer.request_id)
        _require(reuse.memory_tokens > answer.prompt_tokens * 3 // 4, f"reused {reuse}")
        _require(reuse.disk_tokens == 0, f"reused {reuse}")
        return self._result("5 engine restart", "alice", answer, "opened, same answer", "memory")

    def persistent_tier(self) -> StepResult:
        """Only the sealed blocks on disk are left."""
        self._stack.flush()
        self._restart(stop=(ENGINE, INSTANCE), start=(INSTANCE, ENGINE))
        answer = self._repeat("alice")
        reuse = self._stack.reuse(answer.request_id)
        _require(reuse.disk_tokens > answer.prompt_tokens * 3 // 4, f"reused {reuse}")
        # As an auditor would: the log's key and a checkpoint, kept outside the log's folder.
        audit = self._stack.config.layout.audit
        self._log_keys = read_keys(audit / SIGNER_NAME)
        self._remembered = (audit / CHECKPOINT_NAME).read_bytes()
        return self._result("6 both restart", "alice", answer, "opened, same answer", "disk")

    def damaged_block(self) -> StepResult:
        """A damaged block is recomputed, never served."""
        self._stack.flush()
        self._restart(stop=(ENGINE, INSTANCE), start=())
        damaged = self._flip_one_byte_of_each_first_block()
        self._restart(stop=(), start=(INSTANCE, ENGINE))
        answer = self._repeat("alice")
        reuse = self._stack.reuse(answer.request_id)
        _require(reuse.failed_blocks > 0, f"no block failed to open: {reuse}")
        found = sum(event["event"] == "integrity_failure" for event in self._stack.events())
        _require(found > 0, "the log holds no integrity_failure")
        shown = f"{damaged} damaged, recomputed, same answer, integrity_failure logged"
        tier = "disk" if reuse.disk_tokens else ""
        return self._result("7 damaged", "alice", answer, shown, tier)

    def erased(self) -> StepResult:
        """Copies of the sealed blocks are worth nothing without the key."""
        self._stack.flush()
        copy = self._stack.blocks.with_name("kv-copy")
        shutil.copytree(self._stack.blocks, copy)
        erased = self._stack.erase("alice")
        _require(len(erased) == 1, f"erased {erased}")
        shutil.copytree(copy, self._stack.blocks, dirs_exist_ok=True)
        shutil.rmtree(copy)
        answer = self._repeat("alice")
        reuse = self._stack.reuse(answer.request_id)
        reused = answer.cached_tokens + reuse.memory_tokens + reuse.disk_tokens
        _require(reused == 0, f"an erased session gave {reuse}")
        shown = "cold again, with a copy of her old blocks put back"
        return self._result("8 erased", "alice", answer, shown, "")

    def verified_log(self) -> StepResult:
        """The whole log, against the checkpoint remembered in step 6."""
        trust = Trust(keys=self._log_keys, remembered=(self._remembered,))
        report = verify_files([self._stack.config.layout.audit], trust)
        verdicts = ", ".join(f"{aspect} {report.verdict(aspect)}" for aspect in Aspect)
        _require(report.exit_code == 0, f"the audit log does not verify: {verdicts}")
        return StepResult("9 log", verdicts, None)

    def _ask(self, tenant: str, prompt: str, max_tokens: int) -> Completion:
        return self._stack.complete(tenant, prompt, max_tokens)

    def _repeat(self, tenant: str) -> Completion:
        first = self._first_answer()
        answer = self._ask(tenant, self._prompt, ANSWER_TOKENS)
        _require(
            bool(answer.text) and first.text.startswith(answer.text),
            f"the answer differs: {answer.text[:60]!r}, at first {first.text[:60]!r}",
        )
        return answer

    def _first_answer(self) -> Completion:
        _require(self._first is not None, "the first step did not run")
        assert self._first is not None
        return self._first

    def _result(
        self, step: str, tenant: str, answer: Completion, shown: str, tier: str
    ) -> StepResult:
        row = Row(step, tenant, answer.prompt_tokens, answer.cached_tokens, tier, answer.ttft_s)
        return StepResult(step, shown, row)

    def _flip_one_byte_of_each_first_block(self) -> str:
        """Flip one byte in the oldest stored block of each session that has blocks."""
        count = 0
        for block in _one_block_a_session(self._stack.blocks):
            content = bytearray(block.read_bytes())
            content[len(content) // 2] ^= 1
            block.write_bytes(content)
            count += 1
        _require(count > 0, f"no stored block in {self._stack.blocks}")
        return f"{count} block{'s' if count > 1 else ''}"


def _one_block_a_session(folder: Path) -> Iterator[Path]:
    for session in sorted(path for path in folder.glob("*/*") if path.is_dir()):
        blocks = sorted(session.glob("*.kvs"), key=lambda path: path.stat().st_mtime_ns)
        if blocks:
            yield blocks[0]


def _require(held: bool, otherwise: str) -> None:
    if not held:
        raise StoryError(otherwise)
