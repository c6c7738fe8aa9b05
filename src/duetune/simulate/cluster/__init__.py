"""A cluster in simulated time: workloads, worlds, rounds of planning, and their outcomes.

The planners are in ``duetune.planners``, the knowledge sources in ``duetune.knowledge.sources``.
"""
