"""Where the answer stands in a completion: thinking left out, the last marked answer found, in one pass."""

import collections
import re
from dataclasses import dataclass

_TAG = re.compile(r"<(/?)(?:think|thinking|reasoning)>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])[ \t]*|####")
_PHRASE = re.compile(
    r"\b(?:final[ \t]+)?answer(?:[ \t]*\*\*)?[ \t]*(?:(?:is|equals)\b[ \t]*:?|:|=)(?:[ \t]*\*\*)?(?P<gap>[ \t]*)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\.(?=\s|\*|$)|[!?](?=\s|$)")
_DISPLAY = re.compile(r"\$\$([^$]+)\$\$\.?\s*(?:\n|$)|\\\[(.+?)\\\]\.?\s*(?:\n|$)", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212\u2013]?[$\u20ac\u00a3]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:/[0-9]+)?%?(?![\w])"
)
LONGEST_TAIL = 2_000
"""Characters at the end of a completion in which flexible mode looks for a last number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a completion marks as its answer."""

    text: str | None
    """The marked text; None where there is none, or the last mark is incomplete."""

    why: str
    """How it was found, or what is missing."""


def find_answer(completion: str, *, flexible: bool = False) -> Found:
    r"""The last marked answer outside the thinking part.

    `\boxed{}`, `\fbox{}` and `####` outrank the phrases "the answer is" and "answer:". Of several, the last decides;
    a box that is never closed decides too, and is no answer.

    Args:
        completion: what the model wrote.
        flexible: without any mark, take the last line where it is an answer by itself, else the last number.

    Example:
        >>> find_answer("First \\boxed{3}. No: \\boxed{\\frac{1}{2}}").text
        '\\frac{1}{2}'
        >>> find_answer("It is 4.").why
        'no marked answer'
    """
    text = without_thinking(completion)
    marked = last_mark(text)
    if marked is not None:
        return marked
    phrase = _last(_PHRASE, text)
    if phrase is not None:
        return Found(text=_after_phrase(text[phrase.end() :]), why="after an answer phrase")
    if not flexible:
        return Found(text=None, why="no marked answer")
    number = _last(_NUMBER, text[-LONGEST_TAIL:])
    lines = text[-LONGEST_TAIL:].strip().splitlines()
    if number is None:
        return Found(text=lines[-1] if lines else None, why="the last line" if lines else "nothing was answered")
    return Found(text=number[0], why="the last number")


def find_gold(gold: str) -> str:
    """The answer in a gold text: its last mark where it is a whole solution, else all of it."""
    marked = last_mark(gold)
    return gold if marked is None else (marked.text or "")


def without_thinking(text: str) -> str:
    """The text outside thinking tags; a closing tag whose opening one stood in the prompt ends a thinking part too."""
    if "<" not in text:
        return text
    kept: list[str] = []
    depth, start = 0, 0
    for tag in _TAG.finditer(text):
        if tag[1]:
            if depth == 0:
                kept.clear()
            depth = max(depth - 1, 0)
            start = tag.end()
        else:
            if depth == 0:
                kept.append(text[start : tag.start()])
            depth += 1
    if depth == 0:
        kept.append(text[start:])
    return "\n".join(kept)


def last_mark(text: str) -> Found | None:
    """The last box or `####` line; None where there is none."""
    if "####" not in text and "\\boxed" not in text and "\\fbox" not in text:
        return None
    found: Found | None = None
    ends: dict[int, int] | None = None
    position = 0
    for mark in _BOX.finditer(text):
        if mark.start() < position:
            continue  # inside a box that was taken already
        if mark[0] == "####":
            line = text[mark.end() :].lstrip().partition("\n")[0] if _is_last(text, mark.end()) else ""
            found = Found(text=line, why="after ####")
            continue
        if not text.startswith("{", mark.end()):
            bare = re.match(r"[^\s$.,{}]+(?:\.[0-9]+)?", text[mark.end() : mark.end() + 100])
            found = Found(text=bare[0] if bare else None, why="in a box without braces" if bare else "an empty box")
            continue
        ends = _closing(text) if ends is None else ends
        end = ends.get(mark.end())
        if end is None:
            found = Found(text=None, why="the last box is never closed")
        else:
            found = Found(text=_unbox(text[mark.end() + 1 : end]), why="in the last box")
            position = end
    return found


def _last(pattern: "re.Pattern[str]", text: str) -> "re.Match[str] | None":
    found = collections.deque(pattern.finditer(text), maxlen=1)
    return found[0] if found else None


def _is_last(text: str, position: int) -> bool:
    """Whether no other `####` follows: only the last line is cut out, so that a million markers cost one pass."""
    return text.find("####", position) < 0


def _unbox(text: str) -> str:
    for _ in range(8):
        inner = re.fullmatch(r"\s*\\(?:boxed|fbox)\s*\{(.*)\}\s*", text, re.DOTALL)
        if inner is None:
            break
        text = inner[1]
    return text


def _closing(text: str) -> dict[int, int]:
    """Where each opening brace is closed, by its place; escaped braces do not count."""
    ends: dict[int, int] = {}
    open_at: list[int] = []
    for brace in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if brace[0] == "{":
            open_at.append(brace.start())
        elif brace[0] == "}" and open_at:
            ends[open_at.pop()] = brace.start()
    return ends


def _after_phrase(rest: str) -> str | None:
    start = rest[:LONGEST_TAIL].lstrip()
    display = _DISPLAY.match(start)
    if display is not None:
        return display[1] or display[2]
    line = start.partition("\n")[0].strip()
    end = _SENTENCE_END.search(line)
    return (line[: end.start()] if end else line).strip().strip("*").strip()
