"""Events in, commands out: what a job is, given all that happened to it.

The engine knows no clock, no fleet and no database. The live controller feeds it events as they
come, a replay feeds it the same events from the journal, an episode of the simulator feeds it
events of a simulated world, and the store derives its rows from the same state.
"""
