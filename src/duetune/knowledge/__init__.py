"""Configuration knowledge: which configurations fit, how fast they are, and how sure that is."""
