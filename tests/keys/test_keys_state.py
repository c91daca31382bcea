"""Whatever is done in whatever order, the service agrees with a model that is a dictionary."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from keys_support import Clock, abandon, listed, open_service

from kvrun.keys import KeyLimits, KeyService, SessionKeys

IDLE_S, ABSOLUTE_S = 100.0, 300.0
LIMITS = KeyLimits(idle_timeout_s=IDLE_S, absolute_timeout_s=ABSOLUTE_S, max_open_handles=2)
tenants = st.sampled_from(["a", "b"])
sessions = st.sampled_from(["x", "y", "z"])


class KeyServiceMachine(RuleBasedStateMachine):
    """The model: (tenant, session) -> [salt, created, last used]; and every salt ever seen."""

    @initialize()
    def start(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="kvrun-keys-"))
        self.clock = Clock()
        self.service: KeyService = open_service(self.base, self.clock, limits=LIMITS)
        self.model: dict[tuple[str, str], tuple[str, float, float]] = {}
        self.dead_salts: set[str] = set()
        self.handles: list[SessionKeys] = []
        self.last_generation = 0

    def expired(self, name: tuple[str, str]) -> bool:
        _, created, used = self.model[name]
        return self.clock.time - used >= IDLE_S or self.clock.time - created >= ABSOLUTE_S

    def forget(self, name: tuple[str, str]) -> None:
        self.dead_salts.add(self.model.pop(name)[0])

    @rule(tenant=tenants, session=sessions)
    def acquire(self, tenant: str, session: str) -> None:
        name = (tenant, session)
        keys = self.service.acquire(tenant, session)
        self.handles.append(keys)
        if name in self.model and self.expired(name):
            self.forget(name)
        if name in self.model:
            assert keys.salt == self.model[name][0]
            created = self.model[name][1]
        else:
            assert keys.generation > self.last_generation
            self.last_generation = keys.generation
            created = self.clock.time
        self.model[name] = (keys.salt, created, self.clock.time)

    @rule(tenant=tenants, session=sessions)
    def find(self, tenant: str, session: str) -> None:
        keys = self.service.find(tenant, session)
        name = (tenant, session)
        if name not in self.model or self.expired(name):
            assert keys is None
        else:
            assert keys is not None
            assert keys.salt == self.model[name][0]

    @rule(tenant=tenants, session=sessions)
    def destroy(self, tenant: str, session: str) -> None:
        gone = self.service.destroy_session(tenant, session)
        assert (gone is not None) == ((tenant, session) in self.model)
        if gone is not None:
            self.forget((tenant, session))

    @rule(tenant=tenants)
    def destroy_tenant(self, tenant: str) -> None:
        mine = [name for name in self.model if name[0] == tenant]
        gone = self.service.destroy_tenant(tenant)
        assert len([key for key in gone if key.session_ref]) == len(mine)
        for name in mine:
            self.forget(name)

    @rule(seconds=st.floats(0, 120))
    def wait(self, seconds: float) -> None:
        self.clock.time += seconds

    @rule()
    def destroy_expired(self) -> None:
        self.service.destroy_expired()
        for name in [name for name in self.model if self.expired(name)]:
            self.forget(name)

    @rule()
    def restart(self) -> None:
        self.service.close()
        assert not any(path.name.endswith(".new") for path in self.base.rglob("*"))
        self.service = open_service(self.base, self.clock, limits=LIMITS)
        self.handles.clear()

    @rule()
    def kill_and_restart(self) -> None:
        self.service.destroy_expired()  # writes last uses down to a coarse step
        for name in [name for name in self.model if self.expired(name)]:
            self.forget(name)
        abandon(self.service)
        self.service = open_service(self.base, self.clock, limits=LIMITS)
        self.handles.clear()
        # A use within the last step may be forgotten: those sessions may expire earlier.
        for entry in self.service._ring.sessions():
            with self.service._ring.opened(entry) as opened:
                name = (opened.scope.tenant, opened.scope.session)
            salt, created, used = self.model[name]
            assert used - IDLE_S / 100 <= entry.used <= used + 1e-3
            self.model[name] = (salt, created, entry.used)

    @invariant()
    def nothing_dead_is_usable(self) -> None:
        if not hasattr(self, "service"):
            return
        for keys in self.handles:
            assert keys.destroyed == (keys.salt in self.dead_salts)
        found = {(info.tenant, info.session) for info in listed(self.service)}
        assert found == set(self.model)
        assert len(self.service._root.epochs()) == 1
        assert len(self.service._handles) <= LIMITS.max_open_handles

    def teardown(self) -> None:
        if hasattr(self, "service"):
            self.service.close()
            shutil.rmtree(self.base)


TestKeyService = KeyServiceMachine.TestCase
TestKeyService.settings = settings(max_examples=25, stateful_step_count=30)
