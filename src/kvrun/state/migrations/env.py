"""Alembic's entry: runs migrations on the connection, and in the transaction, that it is given."""

from alembic import context

from kvrun.state.database import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
context.run_migrations()
