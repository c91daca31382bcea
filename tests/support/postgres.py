"""A private PostgreSQL cluster for the tests: a Unix socket in a folder of its own, no port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

BINARIES = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/nonexistent"))
USER = "kvrun"


class PostgresCluster:
    """One cluster, run by an unprivileged user: PostgreSQL refuses to run as root."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvr-pg-", dir="/tmp"))
        self._as_user: dict[str, object] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam(_unprivileged())
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0

    def start(self) -> None:
        """Make the cluster and wait until it answers."""
        data = self.folder / "data"
        subprocess.run(
            [BINARIES / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
            **self._as_user,  # type: ignore[call-overload]
        )
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": "40",
            "autovacuum": "off",
        }
        chosen = [part for item in settings.items() for part in ("-c", "=".join(item))]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [BINARIES / "postgres", "-D", data, *chosen],
                stdout=log,
                stderr=log,
                cwd="/",
                **self._as_user,  # type: ignore[call-overload]
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text()}")
            time.sleep(0.05)

    def new_database(self) -> str:
        """The address of a new, empty database."""
        self._made += 1
        name = f"t{self._made}"
        subprocess.run(
            [BINARIES / "createdb", "-h", self.folder, "-U", USER, "-T", "template0", name],
            check=True,
        )
        return f"postgresql+psycopg://{USER}@/{name}?host={self.folder}"

    def take_away(self, url: str) -> str:
        """End a database's connections and rename it; the name, for ``bring_back``."""
        name = url.split("/")[3].split("?")[0]
        self._sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        self._sql(f"ALTER DATABASE {name} RENAME TO {name}_away")
        return name

    def bring_back(self, name: str) -> None:
        """Undo ``take_away``."""
        self._sql(f"ALTER DATABASE {name}_away RENAME TO {name}")

    def _sql(self, statement: str) -> None:
        asked = [
            BINARIES / "psql",
            "-h",
            self.folder,
            "-U",
            USER,
            "-d",
            "postgres",
            "-qc",
            statement,
        ]
        subprocess.run(asked, check=True, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        """End it at once and remove everything."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        asked = [
            BINARIES / "psql",
            "-h",
            self.folder,
            "-U",
            USER,
            "-d",
            "postgres",
            "-c",
            "SELECT 1",
        ]
        return subprocess.run(asked, check=False, capture_output=True).returncode == 0


@pytest.fixture(scope="session")
def postgresql_cluster() -> Iterator[PostgresCluster]:
    """The tests' cluster; it starts when the first test wants it."""
    if not (BINARIES / "initdb").exists():
        pytest.skip("PostgreSQL is not installed")
    cluster = PostgresCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new database: a test runs once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/kvrun.db"
    cluster: PostgresCluster = request.getfixturevalue("postgresql_cluster")
    return cluster.new_database()


def _unprivileged() -> str:
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise RuntimeError("there is no user that could run PostgreSQL")
