"""Fleets provide the nodes that jobs run on: one package per kind, and how to connect to it."""
