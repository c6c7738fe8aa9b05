"""Many jobs on one stock of GPUs: planners, what they are told, and a simulator to judge them."""
