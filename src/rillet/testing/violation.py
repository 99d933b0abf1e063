"""The one exception of the contract suites."""

from __future__ import annotations

__all__ = ["ContractViolation"]


class ContractViolation(AssertionError):
    """A strategy, a threshold, a source or a sink breaks a promise.

    Parameters
    ----------
    promise : str
        Which promise, in a few words; the same words for the same promise.
    subject : object
        Whose promise.
    detail : str
        What was expected and what was found.
    """

    def __init__(self, promise: str, subject: object, detail: str) -> None:
        self.promise = promise
        self.subject = subject
        self.detail = detail
        super().__init__(f"{subject!r} breaks its promise of {promise}: {detail}")

    def __reduce__(self) -> tuple[type[ContractViolation], tuple[str, object, str]]:
        return type(self), (self.promise, self.subject, self.detail)
