"""Everything that outlives a process: the journal and its read models, in SQLite or PostgreSQL.

``store.open_store`` opens a store; ``home_store`` finds the store of a home folder.
"""
