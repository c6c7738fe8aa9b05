"""The job as a user writes it: checked once, here, and trusted everywhere else."""
