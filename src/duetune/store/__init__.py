"""Everything that outlives a process: the journal and its read models, in SQLite or PostgreSQL.

``store.open_store`` opens a store; ``store.opened_store`` that of a home folder.
"""
