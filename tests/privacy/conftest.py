"""One broker for all tests here."""

from helpers.servers import broker

__all__ = ["broker"]
