"""The engine: configuration, assembly, the running job; ``rillet run`` is thin over it."""

from rillet.engine.config import Config, load_config
from rillet.engine.job import Summary
from rillet.engine.service import check, run

__all__ = ["Config", "Summary", "check", "load_config", "run"]
