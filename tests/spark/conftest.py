"""One Spark for all of them."""

from helpers.servers import database
from helpers.spark import spark

__all__ = ["database", "spark"]
