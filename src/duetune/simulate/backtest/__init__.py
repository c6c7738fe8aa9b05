"""Backtests of forecasters: forecasts as they would have been made then, and their scores.

The forecasters themselves are in ``duetune.market.forecast``.
"""
