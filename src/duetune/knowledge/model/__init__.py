"""The learned model of memory and pace: physics fitted to history, corrections, intervals."""
