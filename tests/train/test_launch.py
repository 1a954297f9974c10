"""How a run is started, and what start is refused."""

import pytest

from upweight.cli.main import main
from upweight.objective.errors import UsageError
from upweight.train.launch import LONGEST_WAIT, Launch, check_launch
from upweight.train.trainer import Trainer


@pytest.mark.parametrize("seconds", [0, -1.0, 1e-300, 0.5, LONGEST_WAIT + 1, 1e300, float("nan"), float("inf"), "600"])
def test_a_wait_of_no_time_or_of_ages_is_refused_with_what_may_be(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"'rank_timeout' .* at least 1 and at most 2000000, in seconds\. Got .*600"):
        check_launch(Launch(rank_timeout=seconds))


def test_every_wait_between_is_taken() -> None:
    for seconds in (1, 0.1 + 0.9, 600.0, LONGEST_WAIT):
        check_launch(Launch(rank_timeout=seconds))
    assert LONGEST_WAIT * 1000 < 2**31


def test_one_process_refuses_it_as_several_do() -> None:
    with pytest.raises(UsageError, match="'rank_timeout'"):
        Trainer(launch=Launch(rank_timeout=-1))


@pytest.mark.parametrize("mode", [[], ["--dry-run"], ["--resume", "auto", "--output_dir", "nowhere"]])
@pytest.mark.parametrize("seconds", ["0", "-1", "1e300"])
def test_every_mode_of_train_refuses_it(mode: list[str], seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *mode, "--rank_timeout", seconds]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "'rank_timeout'" in err
