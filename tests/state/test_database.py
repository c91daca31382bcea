"""The database: private, brought up to date, the same in SQLite and PostgreSQL, without tenants."""

from __future__ import annotations

import importlib
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError

from kvrun.accounts.tables import AccountRow, WorkspaceRow
from kvrun.state import Base, Database, DatabaseError
from support.postgres import PostgresCluster

SOURCE = Path(__file__).parents[2] / "src"

for _file in (SOURCE / "kvrun").rglob("*.py"):  # every table of the program
    if "(Base)" in _file.read_text(encoding="utf-8"):
        importlib.import_module(".".join(_file.relative_to(SOURCE).with_suffix("").parts))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database.open(database_url)
    yield opened
    opened.close()


def account(number: int) -> AccountRow:
    return AccountRow(id=f"acc-{number}", name=f"account {number}", created_at=1)


def count(database: Database) -> int:
    with database.reading() as session:
        return session.query(AccountRow).count()


def test_migrations_make_exactly_the_tables_that_the_program_uses(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_constraints_have_the_names_that_the_program_gives_them(database: Database) -> None:
    found = inspect(database.engine)
    for table in Base.metadata.sorted_tables:
        names = {item["name"] for item in found.get_unique_constraints(table.name)}
        names |= {item["name"] for item in found.get_foreign_keys(table.name)}
        names.add(found.get_pk_constraint(table.name)["name"])
        expected = {str(item.name) for item in table.constraints if item.name}
        assert names == expected, table.name


def test_no_column_could_hold_an_end_users_id(database: Database) -> None:
    """A deleted row stays in journals and backups; so no row ever holds one (ADR 0016)."""
    counts = {"approvals.tenants", "approvals.sessions"}
    known = {"tenants.tenant_ref", "tenants.tenant_class"} | counts
    found = inspect(database.engine)
    columns = {
        f"{table}.{column['name']}"
        for table in found.get_table_names()
        for column in found.get_columns(table)
    }
    named = {name for name in columns if "tenant" in name.split(".")[1] or "session" in name}
    assert named - {"attach_tokens.multi_tenant"} <= known


def test_what_was_committed_is_there_after_opening_again(database_url: str) -> None:
    first = Database.open(database_url)
    with first.transaction() as session:
        session.add(account(1))
    first.close()
    second = Database.open(database_url)
    assert count(second) == 1
    second.close()


def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    def fail() -> None:
        with database.transaction() as session:
            session.add(account(1))
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert count(database) == 0


def test_foreign_keys_are_checked(database: Database) -> None:
    with pytest.raises(IntegrityError), database.transaction() as session:
        session.add(WorkspaceRow(id="ws-1", account_id="nobody", name="w", created_at=1))


def test_a_reader_waits_for_no_writer(database: Database) -> None:
    with database.transaction() as session:
        session.add(account(1))
        session.flush()
        assert count(database) == 0
    assert count(database) == 1


def test_writers_at_the_same_time_lose_nothing(database: Database) -> None:
    with database.transaction() as session:
        session.add(account(1))

    def add() -> None:
        for _ in range(8):
            with database.transaction() as session:
                row = session.get(AccountRow, "acc-1", with_for_update=True)
                assert row is not None
                row.created_at += 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as session:
        assert session.get_one(AccountRow, "acc-1").created_at == 33


def test_openers_at_the_same_time_migrate_once(database_url: str) -> None:
    opened: list[Database | Exception] = []

    def open_it() -> None:
        try:
            opened.append(Database.open(database_url))
        except Exception as error:
            opened.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [item for item in opened if not isinstance(item, Database)] == []
    assert len(opened) == 4


def test_a_database_of_a_newer_version_is_left_alone(database_url: str) -> None:
    database = Database.open(database_url)
    with database.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(DatabaseError, match="newer version of kvrun"):
        Database.open(database_url)


def test_a_database_that_is_gone_is_named_and_comes_back(
    database_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = Database.open(database_url)
    database.engine.dispose()
    if database_url.startswith("sqlite"):
        (tmp_path / "state").rename(tmp_path / "away")
    else:
        cluster: PostgresCluster = request.getfixturevalue("postgresql_cluster")
        name = cluster.take_away(database_url)
    for use in (database.reading, database.transaction):
        with pytest.raises(DatabaseError, match="does not answer") as caught, use() as session:
            session.execute(text("SELECT 1"))
        assert caught.value.status == 503
    if database_url.startswith("sqlite"):
        (tmp_path / "away").rename(tmp_path / "state")
    else:
        cluster.bring_back(name)
    assert count(database) == 0
    database.close()


def test_only_its_owner_can_read_the_file_and_its_journal(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path}/home/kvrun.db")
    with database.transaction() as session:
        session.add(account(1))
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "home").iterdir()}
    assert files == {"kvrun.db": 0o600, "kvrun.db-wal": 0o600, "kvrun.db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    database.close()


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kvrun.db").touch(0o644)
    (tmp_path / "kvrun.db").chmod(0o644)
    with pytest.raises(DatabaseError, match="may be read by other users"):
        Database.open(f"sqlite:///{tmp_path}/kvrun.db")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kvrun.db"
    path.write_bytes(b"something else, and longer than a page's header" * 100)
    path.chmod(0o600)
    with pytest.raises(DatabaseError, match="cannot be opened: file is not a database"):
        Database.open(f"sqlite:///{path}")
    assert path.read_bytes().startswith(b"something else")


@pytest.mark.parametrize(
    "url",
    ["mysql://root@h/d", "sqlite://", "sqlite:///:memory:", "postgresql://h/d", "nothing", ""],
)
def test_other_databases_are_refused_with_what_is_allowed(url: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        Database.open(url)
    assert "postgresql+psycopg://" in (caught.value.hint or "")


def test_no_error_shows_a_password() -> None:
    with pytest.raises(DatabaseError) as caught:
        Database.open("postgresql+psycopg://kvrun:s3cr3t@127.0.0.1:1/none?connect_timeout=2")
    assert "s3cr3t" not in caught.value.diagnostics()
    assert "127.0.0.1" in caught.value.message
