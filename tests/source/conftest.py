"""One broker for all tests of sources."""

from helpers.servers import broker

__all__ = ["broker"]
