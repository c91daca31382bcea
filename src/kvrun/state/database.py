"""One database for everything the control plane remembers about people and deployments.

It holds ids, counters, hashes and names that operators chose, never a tenant's or session's id: a
database, its journal and its backups keep copies of deleted rows (docs/adr/0016).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, Engine, MetaData, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.pool import ConnectionPoolEntry

from kvrun.errors import KvrunError
from kvrun.state.upgrade import upgrade_to_head

BUSY_TIMEOUT_S = 15
"""How long a writer waits for another one (SQLite) before it gives up."""


class DatabaseError(KvrunError):
    """The database cannot be opened or brought up to date."""

    exit_code = 2
    status = 503


class Base(DeclarativeBase):
    """What every table derives from; constraints get the same names in every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Database:
    """An open database whose tables are those of this version of kvrun. Safe between threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = engine.execution_options(kvrun_read_only=True)

    @classmethod
    def open(cls, url: str) -> Self:
        """Open and bring up to date: ``sqlite:///PATH`` or ``postgresql+psycopg://USER@HOST/NAME``.

        A SQLite file is made readable by its owner only. Raises DatabaseError, which never shows
        a password.
        """
        parsed = _parse(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        engine = _sqlite(parsed) if is_sqlite else _postgresql(parsed)
        database = cls(engine)
        try:
            with engine.begin() as connection:
                upgrade_to_head(connection)
        except (SQLAlchemyError, KvrunError) as error:
            database.close()
            if isinstance(error, KvrunError):
                raise DatabaseError(f"{_shown(parsed)} {error.message}", hint=error.hint) from None
            raise DatabaseError(f"{_shown(parsed)} cannot be opened: {_reason(error)}") from None
        return database

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine, for tests and migrations."""
        return self._engine

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end of the block, or rolls back when it raises.

        On SQLite it has the only write lock from its start: what it read cannot change before it
        commits. On PostgreSQL it can, but for rows that were read ``with_for_update``; a control
        plane that changes others by what it read is the only one of its home and locks within
        itself. Raises DatabaseError when the database does not answer.
        """
        with _named(), Session(self._engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that only reads; it waits for no writer. Raises as ``transaction`` does."""
        with _named(), Session(self._reading, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


@contextmanager
def _named() -> Iterator[None]:
    """Name the failures of a database that was fine before: gone, full, locked for too long."""
    try:
        yield
    except (InterfaceError, OperationalError) as error:
        raise DatabaseError(
            f"the database does not answer: {_reason(error)}", hint="Try again."
        ) from error


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseError("the database's address cannot be read", hint=_ALLOWED) from None
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise DatabaseError(f"{parsed.drivername[:40]!r} is no known database", hint=_ALLOWED)
    if parsed.drivername == "sqlite" and (not parsed.database or parsed.database == ":memory:"):
        raise DatabaseError("the SQLite database has no file", hint=_ALLOWED)
    return parsed


def _postgresql(url: URL) -> Engine:
    try:
        return create_engine(url, pool_pre_ping=True, hide_parameters=True)
    except ImportError:
        raise DatabaseError(
            "the driver for PostgreSQL is not installed",
            hint="Run: pip install 'kvrun[postgresql]'",
        ) from None


def _sqlite(url: URL) -> Engine:
    path = Path(url.database or "")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite gives its journal files the mode of the database.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if path.stat().st_mode & 0o077:
            raise DatabaseError(
                f"the database {path} may be read by other users", hint=f"Run: chmod 600 {path}"
            )
    except OSError as error:
        raise DatabaseError(f"the database {path} cannot be opened: {error.strerror}") from None
    engine = create_engine(
        url,
        connect_args={"timeout": BUSY_TIMEOUT_S, "isolation_level": None},
        hide_parameters=True,
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    try:
        for pragma in ("journal_mode=WAL", "foreign_keys=ON", "synchronous=FULL"):
            cursor.execute(f"PRAGMA {pragma}")
    finally:
        cursor.close()


def _begin(connection: Connection) -> None:
    """Begin by hand: Python's driver begins late, and a reader that turns writer can only fail."""
    reading = connection.get_execution_options().get("kvrun_read_only", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _shown(url: URL) -> str:
    return f"the database {url.render_as_string(hide_password=True)}"


def _reason(error: SQLAlchemyError) -> str:
    """The driver's first line; it names host and file, never a password."""
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().splitlines()[0][:300] if str(cause).strip() else type(cause).__name__


_ALLOWED = "Allowed are sqlite:///PATH and postgresql+psycopg://USER@HOST/NAME."
