"""The learned model of memory and throughput: physics fitted to history, corrections, intervals."""
