"""The vocabulary: jobs, markets, physics, decisions, ports. No clock, no input or output."""
