"""One Spark, and one cluster, for all of them."""

from helpers.servers import database
from helpers.spark import cluster, spark

__all__ = ["cluster", "database", "spark"]
