"""The guard against reuse of a secret, as another process would find it."""

from __future__ import annotations

from rillet.state import uses


def forget_uses() -> None:
    """Forget what this process knows about uses of secrets: only files are left."""
    uses._IN_PROCESS.records.clear()
    uses._FILES.clear()
