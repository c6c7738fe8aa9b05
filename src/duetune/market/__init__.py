"""Markets: traces from files and data sets, synthetic markets, and their statistics.

``forecast`` has the forecasters.
"""
