"""Fixtures of the tests about people."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounts_rig import Site, open_site
from sqlalchemy import text

from kvrun.state import Base, Database
from support.postgres import PostgresCluster


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with all tables and no row, to copy."""
    path = tmp_path_factory.mktemp("empty") / "kvrun.db"
    Database.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def shared_postgresql(postgresql_cluster: PostgresCluster) -> str:
    """A PostgreSQL database that tests use one after the other."""
    url = postgresql_cluster.new_database()
    Database.open(url).close()
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A control plane's accounts, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        yield from _on_sqlite(request.getfixturevalue("empty_file"), tmp_path)
        return
    with open_site(request.getfixturevalue("shared_postgresql"), tmp_path) as opened:
        names = ", ".join(table.name for table in Base.metadata.sorted_tables)
        with opened.database.transaction() as session:
            session.execute(text(f"TRUNCATE {names}"))
        yield opened


@pytest.fixture
def local_site(empty_file: Path, tmp_path: Path) -> Iterator[Site]:
    """The same on SQLite alone."""
    yield from _on_sqlite(empty_file, tmp_path)


def _on_sqlite(empty: Path, folder: Path) -> Iterator[Site]:
    (folder / "state").mkdir(mode=0o700)
    shutil.copy(empty, folder / "state" / "kvrun.db")
    with open_site(f"sqlite:///{folder}/state/kvrun.db", folder) as opened:
        yield opened
