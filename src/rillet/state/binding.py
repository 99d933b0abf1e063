"""Rows that belong together: a keyed digest over all sealed rows of a state.

Each row is sealed and bound to its address, but who can write the database without having its key
can still put back an older row, take one away, or empty a table.  So the sealed progress, which
every commit writes, holds the sum modulo 2^256 of one *share* for each other row: a keyed
pseudorandom number (BLAKE2b) made of the row's address and of all its sealed bytes, so that damage
anywhere is noticed when the state is opened, before anything is delivered.

**Why this is enough.** Shares and sum are secret and the shares independent and uniform, as long as
BLAKE2b is a pseudorandom function.  For another set of rows to have the same sum, the shares of
rows that only one of the two has must cancel: whichever rows somebody chooses, that is one chance
in 2^256, and a failed try tells nothing else.  (Were the sum public, many rows could be combined
until it fits; were it not keyed, anybody could compute it.)  A commit adds and subtracts the rows
it changes; opening adds up all of them; a row that is read in between is compared with its share.

What cannot be noticed: a whole folder put back as it once was, with its mark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

#: What a row is, and its numbers in the table.
Address: TypeAlias = tuple[str | int, ...]

_SIZE: Final = 32
_MODULUS: Final = 1 << 8 * _SIZE


def name_of(address: Address) -> bytes:
    """An address as bytes; without NUL, and different for different ones."""
    return " ".join(map(str, address)).encode()


class Binding:
    """The shares of all rows, and their sum."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, person=b"rillet rows", digest_size=_SIZE)
        self._shares: dict[Address, int] = {}
        self.sum = 0

    def share(self, address: Address, content: bytes) -> int:
        """The share of a row, from its address and its sealed bytes, or a content in the clear."""
        digest = self._keyed.copy()
        digest.update(name_of(address) + b"\0")
        digest.update(content)
        return int.from_bytes(digest.digest(), "little")

    def __contains__(self, address: Address) -> bool:
        return address in self._shares

    def has(self, address: Address, sealed: bytes) -> bool:
        """Whether this is the row that was last written there."""
        return self._shares.get(address) == self.share(address, sealed)

    def sum_with(self, shares: Mapping[Address, int], gone: Iterable[Address]) -> int:
        """The sum after rows were written and others deleted."""
        known = self._shares
        before = sum(known[address] for address in shares.keys() & known.keys())
        deleted = sum(known[address] for address in gone)
        return (self.sum + sum(shares.values()) - before - deleted) % _MODULUS

    def take_over(self, shares: Mapping[Address, int], gone: Iterable[Address], total: int) -> None:
        """Note that rows were written and others deleted, with the sum that this makes."""
        self.sum = total
        self._shares.update(shares)
        for address in gone:
            del self._shares[address]
