"""Real text that every machine has: the language reference that Python's `help()` shows -> one text per session."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pydoc_data.topics import topics

SYSTEM = """\
You are a careful technical reader who helps a small team of programmers. In each conversation you are given \
one document, and after it you are asked short questions about it, one at a time, sometimes with hours or days \
between them. Read the whole document before you answer. Rely on the document alone: when it does not say what \
is asked, answer that it does not say, and do not guess. Answer in plain English and in one or two short \
sentences. Name functions, methods and keywords exactly as the document writes them. Do not repeat the \
question, do not apologise, and do not begin with a phrase such as "sure" or "of course". When a question can \
be answered with a single word or number, give that word or number and stop. When you are asked for a list, \
give at most three items, separated by commas. When two parts of the document disagree, say so and name both. \
Never invent an example; if the document has one that fits, point to it by its first few words. If the \
question is about an earlier answer of yours, read that answer again before you go on, and correct it if it \
was wrong. The members of the team see each other's questions, so write every answer so that somebody who has \
not seen the document can understand it, and keep the tone friendly, exact and brief."""
"""Shared by all sessions: some 240 tokens, so that their first blocks are the same and held once."""

QUESTIONS = (
    "What is this document about?",
    "Which part of it matters most to a beginner?",
    "I am back. What should I read next in it?",
)
"""One per turn; the last is asked by the session that returns."""

_NAMES = (
    "execmodel", "comparisons", "assignment", "import", "string-methods", "debugger", "strings", "customization", "try",
    "typesseq", "attribute-access", "formatstrings", "typesmapping", "calls", "function", "naming",
)  # fmt: skip
_CHARACTERS_PER_TOKEN = 6
_SHORT, _LONG, _LONGEST = 0.84, 1.06, 2.1


@dataclass(frozen=True, slots=True)
class Text:
    """A text, not yet cut, and how many tokens of it its session reads."""

    name: str
    body: str
    tokens: int


def choose(count: int, typical_tokens: int) -> list[Text]:
    """`count` texts that differ from their first words on, spread evenly around `typical_tokens`, one twice as long."""
    wished = [name for name in _NAMES if name in topics]
    others = sorted(topics.keys() - set(wished), key=lambda name: (-len(topics[name]), name))
    # By text, since two topics may share one ("if" and "else" do).
    known = list({topics[name]: name for name in reversed([*wished, *others])}.values())[::-1]
    names = [f"{name}-{again}" if again else name for again in range(1 + count // len(known)) for name in known]
    filling = cycle(reversed(known))
    chosen = []
    for name, tokens in zip(names, _lengths(count, typical_tokens), strict=False):
        chosen.append(Text(name, _body(name, tokens * _CHARACTERS_PER_TOKEN, filling), tokens))
    return chosen


def _lengths(count: int, typical: int) -> list[int]:
    # A stride that shares no factor with most counts, so that neighbours differ in length.
    steps = [at * 5 % count / max(1, count - 1) for at in range(count)]
    lengths = [round(typical * (_SHORT + (_LONG - _SHORT) * step)) for step in steps]
    if count > 3:
        lengths[count // 2] = round(typical * _LONGEST)
    return lengths


def _body(name: str, characters: int, filling: Iterator[str]) -> str:
    """The topic, and others after it until it is surely long enough."""
    # With more sessions than topics, one comes again under another first line.
    again = name not in topics
    body = f"Another look, {name}.\n\n{topics[name.rpartition('-')[0]]}" if again else topics[name]
    while len(body) < characters:
        body += "\n\n" + topics[next(filling)]
    return body
