"""Which request may open or seal which of SGLang's pages. Pure, and thread-safe.

SGLang's storage backend sees page hashes only, from threads of its own. The radix cache knows whose
pages they are: it notes the hashes of each request here before SGLang can ask for them. A hash that
nobody noted, or whose request has no admission, is neither found, opened nor sealed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvrun.engines.admission import State
from kvrun.engines.transfer import BlockRef
from kvrun.engines.waiting import AnnouncedAdmissions

LINGER_S = 25.0
"""How long pages of a request that ended can still be sealed; the daemon takes them for 30 s."""


@dataclass(slots=True)
class _Pages:
    """One request's pages in order. ``handle`` and ``tiers`` are the daemon's answer."""

    salt: str
    hashes: list[str] = field(default_factory=list)
    handle: int = 0
    ended_at: float | None = None


class GovernedRequests:
    """Every request that began and did not end long ago."""

    def __init__(self, admissions: AnnouncedAdmissions, clock: Callable[[], float]) -> None:
        self._admissions = admissions
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._requests: OrderedDict[str, _Pages] = OrderedDict()
        self._users: dict[str, dict[str, int]] = {}
        self._ended: OrderedDict[str, _Pages] = OrderedDict()

    def begin(self, request_id: str, salt: str | None, hashes: Sequence[str], tokens: int) -> None:
        """A request came, with the hashes of its prompt's whole pages; once a request."""
        with self._changed:
            if request_id in self._requests:
                return
            self._forget(request_id, self._ended.pop(request_id, None))
            self._requests[request_id] = _Pages(salt or "")
            self._note(request_id, hashes)
            raw = [bytes.fromhex(name) for name in hashes]
            self._admissions.begin(request_id, salt, raw, tokens)

    def note(self, request_id: str, hashes: Sequence[str]) -> None:
        """The request's pages so far, from its first one on: its answer has filled some more."""
        with self._changed:
            pages = self._requests.get(request_id)
            if pages is not None and list(hashes[: len(pages.hashes)]) == pages.hashes:
                self._note(request_id, hashes[len(pages.hashes) :])

    def known(self, request_id: str) -> bool:
        """Whether the request began and did not end."""
        return request_id in self._requests

    def state(self, request_id: str) -> State:
        """Where its admission stands; one without a handle may use nothing and counts as denied."""
        with self._changed:
            state = self._admissions.state(request_id)
            admission = self._admissions.get(request_id)
            if state is State.ADMITTED and (admission is None or not admission.may_store):
                return State.DENIED
            return state

    def salt(self, request_id: str) -> str:
        """The salt that the request came with."""
        pages = self._requests.get(request_id)
        return pages.salt if pages is not None else ""

    def page_count(self, request_id: str) -> int:
        """How many of its pages were noted."""
        pages = self._requests.get(request_id)
        return len(pages.hashes) if pages is not None else 0

    def start(self, request_id: str, engine_tokens: int, loaded_tokens: int) -> None:
        """Its computing begins: what it reused of the engine, and of what was opened for it."""
        with self._changed:
            self._admissions.admissions.start(request_id, engine_tokens, loaded_tokens)

    def finish(self, request_id: str) -> None:
        """It ended; its pages can be sealed for a while."""
        with self._changed:
            pages = self._requests.pop(request_id, None)
            if pages is None:
                return
            admission = self._admissions.get(request_id)
            if admission is not None and admission.may_store:
                pages.handle = admission.handle
                pages.ended_at = self._clock()
                self._ended[request_id] = pages
            else:
                self._forget(request_id, pages)
            self._admissions.finish(request_id)

    def poll(self) -> list[str]:
        """Take in what the daemon said; the requests that were denied since the last call."""
        with self._changed:
            denied = self._admissions.poll()
            now = self._clock()
            while self._ended:
                request_id, pages = next(iter(self._ended.items()))
                if pages.ended_at is not None and now - pages.ended_at < LINGER_S:
                    break
                del self._ended[request_id]
                self._forget(request_id, pages)
            self._changed.notify_all()
            return denied

    def found(self, keys: Sequence[str], wait_s: float) -> int:
        """How many of these pages, from the first one on, the daemon has for whom they belong to.

        Waits at most ``wait_s`` for an admission that is not decided yet.
        """
        deadline = self._clock() + wait_s
        with self._changed:
            while keys and self._undecided(keys[0]):
                left = deadline - self._clock()
                if left <= 0 or not self._changed.wait(left):
                    break
            count = 0
            for key in keys:
                if self._loader(key) is None:
                    break
                count += 1
            return count

    def loads(self, keys: Sequence[str]) -> tuple[int, list[BlockRef]]:
        """The handle that opens these pages, and as many of them as it may open."""
        with self._changed:
            handle, refs = 0, list[BlockRef]()
            for key in keys:
                loader = self._loader(key)
                if loader is None or (handle and loader[0] != handle):
                    break
                handle = loader[0]
                refs.append(loader[1])
            return handle, refs

    def stores(self, keys: Sequence[str]) -> list[tuple[int, BlockRef] | None]:
        """For each page the handle that may seal it; None for one of nobody's."""
        with self._changed:
            return [self._storer(key) for key in keys]

    def _note(self, request_id: str, hashes: Sequence[str]) -> None:
        pages = self._requests[request_id]
        for key in hashes:
            self._users.setdefault(key, {})[request_id] = len(pages.hashes)
            pages.hashes.append(key)

    def _forget(self, request_id: str, pages: _Pages | None) -> None:
        for key in pages.hashes if pages is not None else ():
            users = self._users.get(key)
            if users is not None:
                users.pop(request_id, None)
                if not users:
                    del self._users[key]

    def _undecided(self, key: str) -> bool:
        users = self._users.get(key, {})
        states = [self._admissions.state(user) for user in users if user in self._requests]
        return State.PENDING in states and State.ADMITTED not in states

    def _loader(self, key: str) -> tuple[int, BlockRef] | None:
        for request_id, index in self._users.get(key, {}).items():
            admission = self._admissions.get(request_id)
            if admission is not None and admission.may_store and admission.tier(0, index):
                return admission.handle, BlockRef(bytes.fromhex(key), 0, index)
        return None

    def _storer(self, key: str) -> tuple[int, BlockRef] | None:
        for request_id, index in self._users.get(key, {}).items():
            admission = self._admissions.get(request_id)
            ended = self._ended.get(request_id)
            handle = 0
            if admission is not None and admission.may_store:
                handle = admission.handle
            elif ended is not None:
                handle = ended.handle
            if handle:
                return handle, BlockRef(bytes.fromhex(key), 0, index)
        return None
