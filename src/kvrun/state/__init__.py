"""The control plane's database: SQLite or PostgreSQL, brought up to date when it is opened."""

from kvrun.state.database import Base, Database, DatabaseError

__all__ = ["Base", "Database", "DatabaseError"]
