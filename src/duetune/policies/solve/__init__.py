"""Exact optima and the value tables that policies plan with."""
