"""The estimate of a small model is near what its steps take, and the script prints it."""

import json
import subprocess
import sys

import plan
import pytest
from speed.worker import HERE

from upweight.report.footprint import footprint

BENCH = HERE.parent


@pytest.mark.slow
@pytest.mark.parametrize("case", [number for number, (model, _) in enumerate(plan.CASES) if model == "small"])
def test_the_estimate_is_within_a_fifth_of_the_measured_peak(case: int) -> None:
    setup = plan.setup_of(*plan.CASES[case])
    found = plan.measured("small", setup, steps=2)
    estimate = footprint(setup).peak - found["base"]
    assert estimate == pytest.approx(found["peak"] - found["base"], rel=0.2)


@pytest.mark.slow
def test_the_script_runs_to_its_table() -> None:
    line = [sys.executable, str(BENCH / "plan.py"), "--quick", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (record,) = json.loads(done.stdout)["cases"]
    assert record["measured"] > 0
    assert len(plan.cells(record)) == len(plan.HEAD)


def test_a_case_is_named_by_what_is_not_the_default() -> None:
    named = [plan.name_of(case) for _, case in plan.CASES]
    assert named[0] == "8 x 8 answers, 64 + 64 tokens"
    assert len({(model, name) for (model, _), name in zip(plan.CASES, named, strict=True)}) == len(plan.CASES)
