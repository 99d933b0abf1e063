"""Live statistics of a private real-valued stream, with differential privacy for every observation."""

__version__ = "0.1.0"

__all__ = ["__version__"]
