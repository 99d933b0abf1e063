"""Toeplitz strategies: the square root and its buffered form."""
