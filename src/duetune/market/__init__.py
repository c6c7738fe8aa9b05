"""Markets: traces from files and data sets, synthetic ones, and what they are like."""
