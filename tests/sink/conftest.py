"""Servers for the sinks that talk to one."""

from helpers.servers import broker, database

__all__ = ["broker", "database"]
