"""Bring a database to the newest migration (Alembic), inside the caller's transaction."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from kvrun.errors import KvrunError

MIGRATIONS = Path(__file__).with_name("migrations")


def upgrade_to_head(connection: Connection) -> None:
    """Run the migrations that are missing; several processes at once take turns.

    Raises KvrunError for a database that a newer version of kvrun made.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_NUMBER})"))
    config = alembic_config()
    script = ScriptDirectory.from_config(config)
    found = MigrationContext.configure(connection).get_current_heads()
    known = {revision.revision for revision in script.walk_revisions()}
    if not set(found) <= known:
        raise KvrunError(
            "was made by a newer version of kvrun", hint="install that version, or a later one"
        )
    if set(found) != set(script.get_heads()):
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def alembic_config() -> Config:
    """Alembic's settings for kvrun's migrations; ``attributes["connection"]`` is left to set."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


_LOCK_NUMBER = 0x6B76_7275_6E00
"""Any number that no other program on the same database server takes: ``kvrun`` in ASCII."""
