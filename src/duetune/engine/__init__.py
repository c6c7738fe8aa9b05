"""The state machine of one job: events go in, commands for the fleet come out.

The engine uses no clock, fleet or database. The live controller, a replay of the journal and the
simulator all feed it events. The store derives its rows from the same state.
"""
