"""What is shipped: solutions that pass, stubs that do not, statements that do not lie."""

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest
from judging.case import Raises, exercise_file, exercise_names, load_module, load_sheet
from judging.compare import fault

PRACTICE = Path(__file__).resolve().parents[2] / "practice"
SOURCES = sorted(PRACTICE.rglob("*.py"))
NAMES = exercise_names()


def test_the_shipped_solutions_all_pass(judge) -> None:
    code, answer = judge("--solutions")
    assert [
        (one["name"], one["failures"], one["note"]) for one in answer["exercises"] if one["status"] != "passed"
    ] == []
    assert (code, answer["passed"], answer["judged"]) == (0, len(NAMES), len(NAMES))


def test_the_shipped_stubs_all_fail_and_say_which_line_to_replace(judge) -> None:
    code, answer = judge()
    assert (code, answer["passed"]) == (1, 0)
    for one in answer["exercises"]:
        assert one["status"] == "unwritten"
        line = int(re.search(r"replace the raise in line (\d+) of .*\.py$", one["note"])[1])
        assert "raise NotImplementedError" in exercise_file(one["name"]).read_text().splitlines()[line - 1]


def test_every_exercise_has_its_four_parts_and_a_row_in_the_table() -> None:
    for folder in ("exercises", "solutions", "cases"):
        files = {path.stem for path in (PRACTICE / folder).glob("*.py")} - {"order"}
        assert files == set(NAMES), folder
    rows = re.findall(r"^\| `(\w+)`", (PRACTICE / "README.md").read_text(), re.MULTILINE)
    assert rows == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_holds_title_shape_and_edges_and_its_example_is_right(name: str) -> None:
    stub, solution = (load_module(exercise_file(name, folder)) for folder in ("exercises", "solutions"))
    title = stub.__doc__.splitlines()[0]
    assert title.rstrip(".") == load_sheet(name).title
    assert "Shape:" in stub.__doc__
    assert "Edges:" in stub.__doc__
    function = getattr(stub, name)
    examples = doctest.DocTestFinder().find(function, globs={name: getattr(solution, name)})
    results = [doctest.DocTestRunner(verbose=False).run(one) for one in examples]
    assert sum(one.attempted for one in results) > 0
    assert sum(one.failed for one in results) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_stub_and_its_solution_are_called_alike(name: str) -> None:
    stub, solution = (_arguments(exercise_file(name, folder), name) for folder in ("exercises", "solutions"))
    assert stub == solution


def _arguments(path: Path, name: str) -> str:
    found = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
    function = next(node for node in found if node.name == name)
    return f"{ast.unparse(function.args)} -> {ast.unparse(function.returns)}"


@pytest.mark.parametrize("name", NAMES)
def test_cases_have_names_of_their_own_and_no_trap_is_the_right_value(name: str) -> None:
    sheet = load_sheet(name)
    assert len({case.name for case in sheet.cases}) == len(sheet.cases) >= 4
    assert len(sheet.hints) >= 3
    for case in sheet.cases:
        assert isinstance(case.right, Raises) or fault(case.right, case) is None
        for mistake, value in case.traps.items():
            assert mistake in fault(value, case)


@pytest.mark.parametrize("module", ["case", "values", "compare", "process", "score", "verdict"])
def test_the_examples_of_the_judge_hold(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"judging.{module}")).failed == 0


def test_no_case_reads_a_solution_or_the_library() -> None:
    wrong = [
        path.name for path in (PRACTICE / "cases").glob("*.py") if re.search(r"solutions|upweight", path.read_text())
    ]
    assert wrong == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PRACTICE).as_posix())
def test_the_rules_of_the_house_hold_here_too(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.isascii()
    assert len(text.splitlines()) <= 500
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions if node.end_lineno - node.body[0].lineno >= 60] == []


def test_the_judge_itself_needs_the_standard_library_alone() -> None:
    import sys

    files = [PRACTICE / "judge.py", *(PRACTICE / "judging").glob("*.py"), *(PRACTICE / "cases").glob("*.py")]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            roots = []
            if isinstance(node, ast.Import):
                roots = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                roots = [node.module.split(".")[0]]
            assert set(roots) <= {*sys.stdlib_module_names, "judging"}, path.name
