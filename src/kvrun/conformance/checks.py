"""What every engine must do, by name. Each check speaks HTTP to a deployment of its own.

An engine differs only in where it keeps a session's context between requests; no check asks which
engine it is.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kvrun.audit.files import read_keys, verify_files
from kvrun.audit.segment import CHECKPOINT_NAME, SIGNER_NAME
from kvrun.audit.verify import Trust
from kvrun.demo.text import long_text
from kvrun.engines.checked import LOG_CHECK
from kvrun.erasure.archive import FOLDER_NAME, CertificateArchive
from kvrun.errors import KvrunError
from kvrun.launch.client import Completion, RequestFailedError
from kvrun.launch.processes import ENGINE, INSTANCE
from kvrun.launch.stack import Stack

_CHARACTERS = 1600
_ANSWER_TOKENS = 24
_SEALED_TIMEOUT_S = 20.0
_MARKER = "sevenpurplewalruses"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a check was met, and what was seen."""

    met: bool
    detail: str


Check = Callable[[Stack], Outcome]


def same_session_reuse(stack: Stack) -> Outcome:
    """The same session's second request reuses, and its answer is the same."""
    cold = _stored(stack, "reuse")
    return _reused(cold, _ask(stack, "reuse"))


def identical_after_reload(stack: Stack) -> Outcome:
    """After the engine alone was restarted the daemon's memory gives the same answer."""
    cold = _stored(stack, "reload")
    _restart(stack, ENGINE)
    return _reused(cold, _ask(stack, "reload"))


def other_tenant_none(stack: Stack) -> Outcome:
    """Another tenant's identical request reuses nothing, from no tier."""
    return _strangers(stack, lambda number: (f"stranger-{number}", None))


def other_session_none(stack: Stack) -> Outcome:
    """Another session of the same tenant reuses nothing, from no tier."""
    return _strangers(stack, lambda number: ("owner", f"another-{number}"))


def restart(stack: Stack) -> Outcome:
    """After daemon and engine were restarted the persistent tier gives the same answer."""
    cold = _stored(stack, "restart")
    stack.flush()
    _restart(stack, ENGINE, INSTANCE)
    again = _ask(stack, "restart")
    disk = stack.reuse(again.request_id).disk_tokens
    seen = _reused(cold, again)
    return Outcome(seen.met and disk > 0, f"{seen.detail}, {disk} from disk")


def tamper_is_a_miss(stack: Stack) -> Outcome:
    """A stored block with one changed byte is computed anew, and the failure is on record."""
    cold = _stored(stack, "tamper")
    stack.flush()
    before = _failures(stack)
    stack.stop(ENGINE, INSTANCE)
    for block in stack.blocks.rglob("*.kvs"):
        content = bytearray(block.read_bytes())
        content[len(content) // 2] ^= 1
        block.write_bytes(content)
    stack.start(INSTANCE, ENGINE)
    again = _ask(stack, "tamper")
    logged = _failures(stack) - before
    met = again.cached_tokens == 0 and again.text == cold.text and logged > 0
    return Outcome(met, f"{_seen(cold, again)}, {logged} integrity failures logged")


def erase_reaches_live_copies(stack: Stack) -> Outcome:
    """Erasing a session makes it cold at once, and the engine confirms that its copies are zero."""
    cold = _stored(stack, "erase")
    stack.erase("erase")
    deployment = stack.config.deployment
    storage = stack.config.layout.storage(deployment.workspace, deployment.name)
    statement = list(CertificateArchive(storage / FOLDER_NAME).statements())[-1]
    again = _ask(stack, "erase")
    zeroed, held = statement.gpu.scrubbed, statement.gpu.held
    met = again.cached_tokens == 0 and again.text == cold.text
    met = met and zeroed > 0 and not held and not statement.unacknowledged
    return Outcome(met, f"{_seen(cold, again)}, {zeroed} zeroed, {held} held")


def context_bound(stack: Stack) -> Outcome:
    """A prompt beyond the window is refused with both numbers."""
    window = stack.options.context_window
    try:
        stack.complete("window", [300] * (window + 7), 1)
    except RequestFailedError as error:
        both = str(window) in error.message and str(window + 7) in error.message
        return Outcome(both and " 400" in error.message, error.message[:160])
    return Outcome(False, f"a prompt of {window + 7} tokens was answered; the window is {window}")


def daemon_stopped(stack: Stack) -> Outcome:
    """While the daemon stands still requests are answered, right and uncached."""
    cold = _stored(stack, "stopped")
    pid = stack.supervisor.pids()[INSTANCE]
    os.kill(pid, signal.SIGSTOP)
    try:
        again = _ask(stack, "stopped")
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_governed(stack)
    return _uncached(cold, again)


def daemon_gone(stack: Stack) -> Outcome:
    """Without the daemon requests are answered, right and uncached; with it again, governed."""
    cold = _stored(stack, "gone")
    stack.stop(INSTANCE)
    again = _ask(stack, "gone")
    stack.start(INSTANCE)
    wait_governed(stack)
    return _uncached(cold, again)


def statistics_true(stack: Stack) -> Outcome:
    """The answer, the daemon and the prompt's length agree on what was reused."""
    _stored(stack, "statistics")
    again = _ask(stack, "statistics")
    reuse = stack.reuse(again.request_id)
    counted = reuse.engine_tokens + reuse.memory_tokens + reuse.disk_tokens + reuse.object_tokens
    met = counted == again.cached_tokens > 0 and reuse.prompt_tokens == again.prompt_tokens
    return Outcome(met, f"answer {again.cached_tokens}, daemon {counted} of {reuse.prompt_tokens}")


def log_verifies(stack: Stack) -> Outcome:
    """The log that is collected verifies under its key and says what was sealed and reused."""
    audit = stack.config.layout.audit
    stack.flush()
    remembered = (audit / CHECKPOINT_NAME).read_bytes()
    before = sum(1 for _ in stack.events())
    _stored(stack, "log")
    _ask(stack, "log")
    stack.flush()
    trust = Trust(keys=read_keys(audit / SIGNER_NAME), remembered=(remembered,))
    report = verify_files([audit], trust)
    told = Counter(str(event["event"]) for event in [*stack.events()][before:])
    sealed, used = told["sealed"], told["reused"] + told["opened"]
    verdict = "it verifies" if report.exit_code == 0 else "it does not verify"
    met = report.exit_code == 0 and sealed > 0 and used > 0
    return Outcome(met, f"{verdict}, {sealed} records of sealing, {used} of reuse")


def object_restart(stack: Stack) -> Outcome:
    """With nothing on disk, daemon and engine are restarted: Storage gives the same answer."""
    cold = _stored(stack, "bucket")
    stack.flush()
    _restart(stack, ENGINE, INSTANCE)
    _find_packs(stack, "bucket")
    again = _ask(stack, "bucket")
    fetched = stack.reuse(again.request_id).object_tokens
    seen = _reused(cold, again)
    return Outcome(seen.met and fetched > 0, f"{seen.detail}, {fetched} from Storage")


def object_strangers_none(stack: Stack) -> Outcome:
    """Another tenant and another session reuse nothing from Storage, and its owner does."""
    text = f"kept {long_text(_CHARACTERS)}\n\nIn short,"
    cold = _stored(stack, "keeper", prompt=text)
    stack.flush()
    _restart(stack, ENGINE, INSTANCE)
    _find_packs(stack, "keeper")
    seen = [
        _ask(stack, "visitor", prompt=text),
        _ask(stack, "keeper", "another", prompt=text),
    ]
    warm = _ask(stack, "keeper", prompt=text)
    fetched = stack.reuse(warm.request_id).object_tokens
    reused = [answer.cached_tokens for answer in seen]
    right = all(answer.text == cold.text for answer in (warm, *seen))
    detail = f"owner reused {fetched} from Storage, strangers {reused}"
    met = fetched > 0 and not any(reused) and right
    return Outcome(met, detail if right else f"{detail}, an answer differs")


def stateless(stack: Stack) -> Outcome:
    """A stateless deployment reuses nothing and writes no block and no word of a prompt."""
    first, again = (
        _ask(stack, "nobody", prompt=f"{_MARKER} {long_text(_CHARACTERS)}") for _ in range(2)
    )
    stack.flush()
    data = stack.config.layout.data_dir
    files = [path for path in data.rglob("*") if path.is_file()]
    blocks = [path for path in files if path.suffix == ".kvs"]
    told = [path for path in files if _MARKER.encode() in path.read_bytes()]
    seen = _uncached(first, again)
    met = seen.met and not blocks and not told
    return Outcome(met, f"{seen.detail}, {len(blocks)} blocks, {len(told)} files with its text")


CHECKS: Mapping[str, Check] = {
    "same-session-reuse": same_session_reuse,
    "other-tenant-none": other_tenant_none,
    "other-session-none": other_session_none,
    "statistics-true": statistics_true,
    "context-bound": context_bound,
    LOG_CHECK: log_verifies,
    "identical-after-reload": identical_after_reload,
    "restart": restart,
    "tamper-is-a-miss": tamper_is_a_miss,
    "erase-reaches-live-copies": erase_reaches_live_copies,
    "daemon-stopped": daemon_stopped,
    "daemon-gone": daemon_gone,
}
OBJECT_CHECKS: Mapping[str, Check] = {
    "object-restart": object_restart,
    "object-strangers-none": object_strangers_none,
}
"""Checks of a deployment that keeps blocks in Storage and none on disk."""

STATELESS_CHECKS: Mapping[str, Check] = {"stateless": stateless}
"""Checks of a deployment that keeps nothing."""


def _ask(
    stack: Stack, tenant: str, session: str | None = None, *, prompt: str | None = None
) -> Completion:
    # A word of its own for each check: what one stored is of no use to another.
    text = prompt or f"{tenant.partition('-')[0]} {long_text(_CHARACTERS)}\n\nIn short,"
    return stack.complete(tenant, text, _ANSWER_TOKENS, session=session)


def _stored(stack: Stack, tenant: str, *, prompt: str | None = None) -> Completion:
    """A first request whose blocks are sealed when this returns."""
    answer = _ask(stack, tenant, prompt=prompt)
    deadline = time.monotonic() + _SEALED_TIMEOUT_S
    while not stack.reuse(answer.request_id).sealed_blocks and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer


def _strangers(stack: Stack, name: Callable[[int], tuple[str, str | None]]) -> Outcome:
    text = f"shared {long_text(_CHARACTERS)}\n\nIn short,"
    owner = _stored(stack, "owner", prompt=text)
    warm = _ask(stack, "owner", prompt=text)
    seen = [_ask(stack, *name(0), prompt=text)]
    _restart(stack, ENGINE)
    seen.append(_ask(stack, *name(1), prompt=text))
    stack.flush()
    _restart(stack, ENGINE, INSTANCE)
    seen.append(_ask(stack, *name(2), prompt=text))
    reused = [answer.cached_tokens for answer in seen]
    right = all(answer.text == owner.text for answer in (warm, *seen))
    met = warm.cached_tokens > 0 and not any(reused) and right
    detail = f"owner reused {warm.cached_tokens}, strangers {reused}"
    return Outcome(met, detail if right else f"{detail}, an answer differs")


def _restart(stack: Stack, *names: str) -> None:
    stack.stop(*names)
    stack.start(*[name for name in (INSTANCE, ENGINE) if name in names])
    wait_governed(stack)


def wait_governed(stack: Stack) -> None:
    """Wait until a request is admitted: gateway, daemon and engine have found each other."""
    deadline = time.monotonic() + _SEALED_TIMEOUT_S
    while time.monotonic() < deadline:
        answer = stack.complete("healed", [300, 301, 302], 1)
        # The daemon may not know the request, or not answer yet.
        with suppress(KvrunError):
            if stack.reuse(answer.request_id).prompt_tokens:
                return
        time.sleep(0.1)


def _find_packs(stack: Stack, tenant: str) -> None:
    """Wait until the daemon knows what Storage holds of a session: its first request asks."""
    deadline = time.monotonic() + _SEALED_TIMEOUT_S
    while not stack.known_in_storage() and time.monotonic() < deadline:
        stack.complete(tenant, f"hello {long_text(_CHARACTERS)}", 1)
        time.sleep(0.1)


def _failures(stack: Stack) -> int:
    return sum(event["event"] == "integrity_failure" for event in stack.events())


def _reused(cold: Completion, again: Completion) -> Outcome:
    met = cold.cached_tokens == 0 < again.cached_tokens and cold.text == again.text != ""
    return Outcome(met, _seen(cold, again))


def _uncached(cold: Completion, again: Completion) -> Outcome:
    met = cold.cached_tokens == again.cached_tokens == 0 and cold.text == again.text != ""
    return Outcome(met, _seen(cold, again))


def _seen(cold: Completion, again: Completion) -> str:
    same = "the same answer" if cold.text == again.text else "another answer"
    reused = f"reused {cold.cached_tokens}, then {again.cached_tokens} of {again.prompt_tokens}"
    return f"{reused}: {same}"
