"""Values that every other room uses: jobs, markets, physics, decisions, events and ports.

Nothing here reads a clock, a file or the network. The state machine of a job is in ``engine``.
"""
