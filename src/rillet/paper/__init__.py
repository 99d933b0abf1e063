"""The paper apart: its bounds, optimiser, lag rules and diagnostics."""
