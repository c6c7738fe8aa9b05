"""Policies: how many spot and on-demand GPUs to hold in this slot, and why."""
