"""Topic templates: where in the topic of a message the parts of its key stand.

In ``meters/{meter}/reading`` each name in braces takes one level of the topic and gives one part of
the key, in the order of the names.

**Privacy.** The template and the declared keys are public; the topic of a message is private.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rillet.errors import ParameterError
from rillet.source.keys import UNDECLARED, DeclaredKeys

__all__ = ["NO_MATCH", "TopicTable", "TopicTemplate"]

#: The place of a topic that the template does not match; `UNDECLARED` is one that it does.
NO_MATCH = -2

_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HINT = 'such as "meters/{meter}/reading"'


class TopicTemplate:
    """A template, taken apart.

    Parameters
    ----------
    template : str
        Levels with slashes between them, each either plain text or one name in braces.

    Attributes
    ----------
    names : tuple of str
        The names in braces, in order.
    subscription : str
        What to subscribe to: each name replaced by the wildcard ``+``.

    Raises
    ------
    ParameterError
        If it is no such template.

    Examples
    --------
    >>> template = TopicTemplate("meters/{meter}/reading")
    >>> template.names, template.subscription
    (('meter',), 'meters/+/reading')
    """

    def __init__(self, template: str) -> None:
        self.levels = _levels(template)
        if self.levels[0] == "$share":
            raise ParameterError(
                "topic", "a topic of its own", template, "shared subscriptions split the stream"
            )
        names = []
        for level in self.levels:
            if match := _NAME.fullmatch(level):
                names.append(match[1])
            elif set(level) & set("{}+#"):
                raise ParameterError(
                    "topic", "levels that are plain text or one name in braces", template, _HINT
                )
        if len(set(names)) < len(names):
            raise ParameterError("topic", "each name once", template)
        self.names = tuple(names)
        self.subscription = self.filled(["+"] * len(names))
        self.pattern = re.compile(
            b"/".join(
                rb"([^/]*)" if _NAME.fullmatch(level) else re.escape(level.encode())
                for level in self.levels
            )
        )

    def table(self, keys: DeclaredKeys | None) -> TopicTable:
        """Return the table from topics to places.

        Raises
        ------
        ParameterError
            If the keys do not fit the template.
        """
        if keys is None:
            return TopicTable(self, None)
        if keys.parts != len(self.names):
            raise ParameterError(
                "topic",
                f"{keys.parts} names in braces, one for each part of a declared key",
                "/".join(self.levels),
            )
        for key in keys.keys:
            if any(set(str(part)) & set("/+#\0") for part in key):
                raise ParameterError(
                    "keys", "parts that can be a level of a topic, without / + #", key
                )
        return TopicTable(self, keys)

    def filled(self, parts: Sequence[str]) -> str:
        """Return the topic with these in place of the names."""
        rest = iter(parts)
        return "/".join(next(rest) if _NAME.fullmatch(level) else level for level in self.levels)


def _levels(template: object) -> list[str]:
    if not isinstance(template, str) or not template or "\0" in template:
        raise ParameterError("topic", "a topic template", template, _HINT)
    return template.split("/")


class TopicTable(dict[bytes, int]):
    """From the topic of a message to the place of its key.

    **Privacy.** Touches raw data when it is asked; total. Topics of undeclared keys cost more time,
    before any release is made of them.

    Examples
    --------
    >>> table = TopicTemplate("meters/{meter}").table(DeclaredKeys([("a",), ("b",)]))
    >>> [table[topic] for topic in (b"meters/b", b"meters/c", b"weather")]
    [1, -1, -2]
    """

    def __init__(self, template: TopicTemplate, keys: DeclaredKeys | None) -> None:
        self._template, self._keys = template, keys
        declared = () if keys is None else keys.keys
        super().__init__(
            (template.filled([str(part).strip() for part in key]).encode(), place)
            for place, key in enumerate(declared)
        )
        # No message is published there, whatever a name in braces would match.
        self[b""] = NO_MATCH

    def __missing__(self, raw_topic: bytes) -> int:
        raw_match = self._template.pattern.fullmatch(raw_topic)
        if raw_match is None:
            return NO_MATCH
        if self._keys is None:
            return UNDECLARED
        return int(self._keys.places(*([part] for part in raw_match.groups()))[0])
