"""A cluster in simulated time: workloads, worlds, rounds of planning, and what came of them."""
