"""Facts about models, GPUs and prices that need no measurement."""
