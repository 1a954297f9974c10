"""The documents: every detail names code that exists and a test that holds it; every link leads somewhere."""

import ast
import functools
import importlib
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
DETAILS = REPOSITORY / "docs" / "details.md"
DOCUMENTS = [
    REPOSITORY / "README.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    REPOSITORY / "practice" / "README.md",
]
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def details(text: str) -> list[tuple[int, str]]:
    """Number and text of each detail, up to the next one or the next heading."""
    found = re.finditer(r"^(\d+)\. (.*?)(?=^\d+\. |^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return [(int(match[1]), match[2]) for match in found]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def names_of(text: str) -> list[str]:
    return [word for word in quoted(text) if re.fullmatch(r"upweight(\.\w+)+", word)]


def pins_of(text: str) -> list[str]:
    return [word for word in quoted(text) if word.startswith("tests/")]


def is_importable(dotted: str) -> bool:
    """Whether a dotted name is a module, or something that can be reached in one."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        module = ".".join(parts[:cut])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            continue
        try:
            functools.reduce(getattr, parts[cut:], found)
        except AttributeError:
            return False
        return True
    return False


@functools.cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_test(test_id: str) -> bool:
    """Whether `FILE::FUNCTION` is a test of this repository; brackets of a parametrised one may follow."""
    path, _, rest = test_id.partition("::")
    function = rest.partition("[")[0]
    return (
        function.startswith("test_") and (REPOSITORY / path).is_file() and function in functions_of(REPOSITORY / path)
    )


def faults_of(number: int, text: str) -> list[str]:
    names, tests = names_of(text), pins_of(text)
    return [
        *([] if names else [f"detail {number} names no place"]),
        *([] if tests else [f"detail {number} names no test"]),
        *(f"detail {number}: {name} does not exist" for name in names if not is_importable(name)),
        *(f"detail {number}: {test} does not exist" for test in tests if not is_test(test)),
    ]


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading: lower case, hyphens for spaces, no other punctuation."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    kept = (c for c in plain if c in "-_ " or unicodedata.category(c)[0] in "LNM")
    return "".join("-" if c == " " else c for c in kept)


def anchors_of(text: str) -> set[str]:
    """Anchors of all headings; a repeated one gets -1, -2 and so on."""
    seen: dict[str, int] = {}
    anchors = set()
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)?$", FENCE.sub("", text), re.MULTILINE):
        base = slug(heading)
        again = seen.get(base, 0)
        anchors.add(f"{base}-{again}" if again else base)
        seen[base] = again + 1
    return anchors | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def links_of(text: str) -> Iterator[str]:
    """Targets of the links and images of a document that stay in the repository."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    targets = [
        *re.findall(r"\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)", prose),
        *re.findall(r"^\[[^\]]+\]: +(\S+)", prose, re.MULTILINE),
        *re.findall(r"<(?:img|a|source)\b[^>]*?\b(?:src|srcset|href)=\"([^\"]+)\"", prose),
    ]
    yield from (target for target in targets if not OUTSIDE.match(target))


def broken_links(document: Path, text: str) -> list[str]:
    broken = []
    for target in links_of(text):
        path, _, anchor = target.partition("#")
        there = (document.parent / path).resolve() if path else document
        if not there.is_relative_to(REPOSITORY) or not there.exists():
            broken.append(f"{target} leads to no file")
        elif anchor and there.suffix == ".md":
            source = text if there == document else there.read_text(encoding="utf-8")
            if anchor not in anchors_of(source):
                broken.append(f"{target} leads to no heading")
    return broken


DETAILS_FOUND = details(DETAILS.read_text(encoding="utf-8"))


def test_details_are_numbered_without_gaps() -> None:
    """They are cited by number, so none may go missing; the first 31 were published before the others."""
    numbers = [number for number, _ in DETAILS_FOUND]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 31


@pytest.mark.parametrize(("number", "text"), DETAILS_FOUND, ids=[f"detail-{number}" for number, _ in DETAILS_FOUND])
def test_a_detail_names_the_code_that_holds_it_and_a_test_that_pins_it(number: int, text: str) -> None:
    assert faults_of(number, text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Nothing. `tests/test_docs.py::test_every_link_leads_somewhere`", "names no place"),
        ("Nothing. `upweight.objective.kl.kl_estimate`", "names no test"),
        ("`upweight.objective.kl.k4` `tests/test_docs.py::test_every_link_leads_somewhere`", "kl.k4 does not exist"),
        ("`upweight.nothing.at_all` `tests/test_docs.py::test_every_link_leads_somewhere`", "at_all does not exist"),
        ("`upweight.objective.kl` `tests/test_docs.py::test_that_is_not_there`", "not_there does not exist"),
        ("`upweight.objective.kl` `tests/test_nowhere.py::test_a`", "test_a does not exist"),
        ("`upweight.objective.kl` `tests/test_docs.py::slug`", "slug does not exist"),
        ("`upweight.objective.kl` `tests/test_docs.py`", "tests/test_docs.py does not exist"),
    ],
)
def test_a_detail_that_names_nothing_real_is_named_itself(text: str, fault: str) -> None:
    (said,) = faults_of(7, text)
    assert said.startswith("detail 7")
    assert said.endswith(fault)


def test_methods_private_names_and_parametrised_tests_are_found() -> None:
    text = (
        "`upweight.policy.policy.Policy.score` `upweight.train.passes._kept` "
        "`tests/test_docs.py::test_every_link_leads_somewhere[README.md]`"
    )
    assert faults_of(1, text) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_link_leads_somewhere(document: Path) -> None:
    assert broken_links(document, document.read_text(encoding="utf-8")) == []


def test_the_documents_have_links() -> None:
    """Otherwise the test above would hold for any text."""
    assert any(list(links_of(document.read_text(encoding="utf-8"))) for document in DOCUMENTS)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](details.md)", []),
        ("[a](nothing.md)", ["nothing.md leads to no file"]),
        ('![a](nothing.png "title")', ["nothing.png leads to no file"]),
        ('<img src="nothing.svg">', ["nothing.svg leads to no file"]),
        ("[a]: nothing.md", ["nothing.md leads to no file"]),
        ("[a](../../elsewhere.md)", ["../../elsewhere.md leads to no file"]),
        ("[a](#here)", ["#here leads to no heading"]),
        ("# Here\n[a](#here)", []),
        ("```\n# here\n```\n[a](#here)", ["#here leads to no heading"]),
        ("## Two\n## Two\n[a](#two-1) [b](#two-2)", ["#two-2 leads to no heading"]),
        ("## The `mask`, [selected](x:y)!\n[a](#the-mask-selected)", []),
        ("[a](../README.md#no-such-heading)", ["../README.md#no-such-heading leads to no heading"]),
        ("`[a](nothing.md)` [a](https://example.org/nothing.md)", []),
        ("```\n[a](nothing.md)\n```", []),
    ],
)
def test_a_link_is_followed_to_its_file_and_its_heading(text: str, broken: list[str]) -> None:
    assert broken_links(DETAILS, text) == broken
