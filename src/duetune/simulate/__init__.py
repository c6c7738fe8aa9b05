"""Simulation: no clock, no processes, no network.

``episode`` plays one job slot by slot, ``tournament`` plays many policies on many jobs,
``backtest`` scores forecasters, ``cluster`` plays many jobs on one stock of GPUs, and
``journal_replay`` plays recorded jobs again. The live loop is in ``duetune.control``.
"""
