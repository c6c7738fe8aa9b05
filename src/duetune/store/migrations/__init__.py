"""One module per schema, run in order by Alembic. None is ever changed once released."""
