"""Trained nets as files for other runtimes: what leaves of a task, one function a format, and the gate behind them."""
