"""Gather: from observations to leaves, the integer vectors that a strategy releases."""
