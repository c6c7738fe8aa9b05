"""Planners decide in every round which job gets which GPUs of a shared stock.

What a planner is shown and what it returns is in ``duetune.core.planning``. The simulator that
compares planners is in ``duetune.simulate.cluster``; the live queue is in ``duetune.control``.
"""
