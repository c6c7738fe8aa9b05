"""Simulation: one job step by step, or a tournament of policies over many jobs and markets."""
