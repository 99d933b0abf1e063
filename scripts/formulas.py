r"""Typeset formulas when the site is built: ``$…$`` and ``$$…$$`` in a page become MathML.

A Markdown extension. Browsers show MathML by themselves, so a page needs no script for it. A
formula that cannot be converted stops the build, and so does a command that the converter does not
know (it would stand in the page as text).

Docstrings pass here as well, for the API reference: a role such as ``:meth:`open``` becomes code.
"""

from __future__ import annotations

import html
import itertools
import re
import xml.etree.ElementTree as ET

from latex2mathml.converter import convert_to_element
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.util import AtomicString

INLINE = r"(?<![\\$\w])\$(?![\s$])(?P<tex>[^$]*?[^$\s\\])\$(?![\w$])"
ROLE = r":(?:attr|class|data|func|meth|mod):`~?(?P<name>[^`]+)`"
DISPLAY = re.compile(r"^ {0,3}\$\$(?P<tex>.+?)\$\$\s*$", re.DOTALL)


def typeset(tex: str, display: str) -> ET.Element:
    """A formula as an element ``math``; ``ValueError`` for what the converter does not know."""
    grouping = re.sub(r"\\[{}]", "", tex)
    if grouping.count("{") != grouping.count("}"):  # the converter would guess
        raise ValueError(f"formula ${tex}$: a brace has no partner")
    try:
        element = convert_to_element(tex, display=display)
    except Exception as error:
        raise ValueError(f"formula ${tex}$: {type(error).__name__} {error}") from error
    for part in element.iter():
        if part.text:
            text = html.unescape(part.text)
            if "\\" in text or "&" in text:
                raise ValueError(f"formula ${tex}$: {text} is not known")
            part.text = AtomicString(text)  # no emphasis and no links inside
            _set_symbol(part, text)
    for part in list(element.iter()):
        _set_primes(part)
        _set_spaces(part)
    return element


def _set_symbol(part: ET.Element, text: str) -> None:
    """Symbols as TeX sets them: no space around "/" and "|", upright names and capital Greek."""
    if part.tag == "mo" and text in "/|‖":
        part.attrib.update(lspace="0", rspace="0", stretchy="false")
    elif part.tag == "mo" and (text.isalpha() or text == "∞"):
        part.tag = "mi"
        part.attrib.clear()
    if part.tag == "mi" and len(text) == 1 and "Α" <= text <= "Ω":
        part.set("mathvariant", "normal")


def _set_primes(part: ET.Element) -> None:
    """Keep primes at their full size beside the letter: as superscripts they are too small."""
    if part.tag not in ("msup", "msubsup") or set("".join(part[-1].itertext())) != {"′"}:
        return
    base, prime = part[0], part[-1]
    row = ET.Element("mrow")
    row.append(base)
    ET.SubElement(row, "mo", lspace="0", rspace="0").text = AtomicString("".join(prime.itertext()))
    part.remove(base)
    part.remove(prime)
    part.insert(0, row)
    part.tag = "msub" if part.tag == "msubsup" else "mrow"


def _set_spaces(part: ET.Element) -> None:
    """A thin space between a name such as ln and the letter or number beside it."""
    if part.tag not in ("mrow", "math", "msqrt"):
        return
    children = list(part)
    for left, right in itertools.pairwise(children):
        names = [_is_name(left), _is_name(right)]
        if any(names) and not {left.tag, right.tag} & {"mo", "mspace", "mtext"}:
            part.insert(list(part).index(right), ET.Element("mspace", width="0.167em"))


def _is_name(part: ET.Element) -> bool:
    if part.tag in ("msub", "msup", "msubsup", "munder"):
        return _is_name(part[0])
    return part.tag == "mi" and len(part.text or "") > 1 and (part.text or "").isalpha()


class _Inline(InlineProcessor):
    def handleMatch(  # type: ignore[override]  # noqa: N802 - the name that Markdown calls
        self, m: re.Match[str], data: str
    ) -> tuple[ET.Element, int, int]:
        return typeset(m["tex"], "inline"), m.start(0), m.end(0)


class _Role(InlineProcessor):
    def handleMatch(  # type: ignore[override]  # noqa: N802 - the name that Markdown calls
        self, m: re.Match[str], data: str
    ) -> tuple[ET.Element, int, int]:
        code = ET.Element("code")
        code.text = AtomicString(m["name"])
        return code, m.start(0), m.end(0)


class _Display(BlockProcessor):
    def test(self, parent: ET.Element, block: str) -> bool:
        return DISPLAY.match(block) is not None

    def run(self, parent: ET.Element, blocks: list[str]) -> None:
        found = DISPLAY.match(blocks.pop(0))
        assert found is not None
        box = ET.SubElement(parent, "div", {"class": "formula"})
        box.append(typeset(" ".join(found["tex"].split()), "block"))


class Formulas(Extension):
    """Formulas and roles; code spans come before formulas, so that a prompt in them stays one."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Markdown calls
        """Register the processors."""
        md.parser.blockprocessors.register(_Display(md.parser), "formula-display", 95)
        md.inlinePatterns.register(_Role(ROLE, md), "docstring-role", 195)
        md.inlinePatterns.register(_Inline(INLINE, md), "formula-inline", 185)


def makeExtension(**options: object) -> Formulas:  # noqa: N802 - the name that Markdown calls
    """What Markdown calls to load the extension."""
    return Formulas(**options)
