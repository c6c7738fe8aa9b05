"""Where nodes come from: one package for each kind of fleet."""
