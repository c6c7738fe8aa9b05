"""The backtest of forecasters: forecasts as they would have been made, and their scores."""
