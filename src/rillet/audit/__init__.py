"""Audits that anyone can run: a mechanism as it releases, measured against its claim.

``replay`` runs a stream and its neighbour on the same releases; ``exposure`` finds the unit that
pays most and compares it with the promise; ``trials`` bounds ε from below by likelihood ratios, and
tests the noise; ``black_box`` does the same through the public interface; ``broken`` has mechanisms
with one mistake each, which must all be caught.

**Privacy.** On made-up streams with fresh secrets: no data of a user is read.
"""

from rillet.audit.auditor import FULL, QUICK, Check, Effort, Report, audit
from rillet.audit.mechanisms import SUBJECTS, OneLook, Subject

__all__ = ["FULL", "QUICK", "SUBJECTS", "Check", "Effort", "OneLook", "Report", "Subject", "audit"]
