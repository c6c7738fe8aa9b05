"""Configurations of a fine-tuning run, the spaces they come from, and the rules they keep."""
