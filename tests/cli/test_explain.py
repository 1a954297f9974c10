"""`upweight explain`, and `--like` on every verb that takes a run's flags."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from upweight.cli.explain import read
from upweight.cli.main import main
from upweight.cli.train import read as read_train
from upweight.objective.dialects import translate

ROWS = (
    "--adv_norm std --loss_agg token-mean",
    "--loss_agg seq-mean-token-mean",
    "--adv_norm none --loss_agg seq-mean-token-sum-norm",
    "--clip_high 0.28 --filter_groups true --kl_coef 0",
    "--ratio_level sequence --clip 0.0003 --clip_high 0.0004",
)
"""The published rows of flags, as typed."""


def explained(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, object]:
    assert main(["explain", *line.split(), "--json"]) == 0
    content: dict[str, object] = json.loads(capsys.readouterr().out)
    return content


def assert_refused(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit code 2, and nothing printed before."""
    assert main(["explain", *line.split()]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("row", ROWS)
def test_each_published_row_is_explained_as_it_is_trained(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = explained(capsys, row)["flags"]
    objective = read_train(row.split())[0].args.objective
    assert flags == {name: getattr(objective, name) for name in objective.__slots__}


def test_gspos_row_as_typed_is_told_that_it_weighs_by_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert any(
        "long answers count by their length" in str(b)
        for b in explained(capsys, f"{ROWS[4]} --minibatches 4")["biases"]
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "line",
    [
        "--kl_estimator k1",
        "--resample true",
        "--group_size 1",
        "--correction tis --old_logprobs sampler",
        "--overlong_buffer 9 --max_new_tokens 8",
        "--preset ppo",
    ],
)
def test_what_train_refuses_is_explained_and_refused_in_the_same_words(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *line.split(), "--dry-run"]) == 2
    refusal = capsys.readouterr().err
    assert main(["explain", *line.split()]) == 2
    shown = capsys.readouterr()
    assert shown.err == refusal
    assert "contradictions: upweight train refuses this" in shown.out
    assert "L = - sum_t w_t" in shown.out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--clip -0.1", "must be at least 0"),
        ("--dual_clip 1", "must be above 1"),
        ("--temperature 0", "must be above 0"),
        ("--json --latex", "Leave one of them out"),
        ("--clip_hihg 0.3", "Did you mean '--clip_high'?"),
        ("--adv_norm STD", "must be one of std, none, batch. Got 'STD' instead. Did you mean 'std'?"),
        ("--config", "'--config' needs a value: a string, or none."),
        ("--config --json", "'--config' needs a value: a string, or none."),
        ("--json=true", "'--json' takes no value: leave out '=true'."),
    ],
)
def test_a_value_that_means_nothing_is_one_sentence_and_nothing_printed(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(line, words, capsys)


def test_the_overlong_buffer_of_dapo_follows_the_budget_or_its_symbol() -> None:
    assert "B = floor(L_max / 5)" in read(["--preset", "dapo"])[1].parts[0].formulas[1].plain
    known = read(["--preset", "dapo", "--max_new_tokens", "100"])[1].parts[0].formulas[1].plain
    assert known == "P_i = - clip((L_i - (100 - B)) / B, 0, 1),  B = 20"


def test_latex_is_a_fragment_for_a_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--preset", "gspo", "--latex"]) == 0
    shown = capsys.readouterr().out
    assert r"\begin{align}" in shown
    assert r"\operatorname{clip}(s_i,\, 0.9997,\, 1.0004)" in shown


def test_help_and_explaining_leave_torch_alone() -> None:
    code = "import sys; from upweight.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    for words in (["explain", "--help"], ["explain", "--like", "verl", "--adv_estimator", "grpo"]):
        assert subprocess.run([sys.executable, "-c", code, *words], capture_output=True).returncode == 0


def test_the_document_of_objectives_is_what_explain_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    monkeypatch.syspath_prepend(str(docs))
    import make_objectives

    assert make_objectives.FILE.read_text(encoding="utf-8") == make_objectives.page()


def test_like_takes_another_trainers_settings_in_its_meaning() -> None:
    line = "--like trl --loss_type cispo --epsilon_high=5 --beta 0 --max_steps 3"
    call, translation = read_train(line.split())
    assert call.args.objective == translate("trl", {"loss_type": "cispo", "epsilon_high": 5, "beta": 0}).objective
    assert call.args.objective.bounds == (0.0, 5.0)
    assert call.args.max_steps == 3
    assert translation is not None
    assert any("absolute ceiling" in sentence for sentence in translation.says)


def test_our_flags_beside_like_keep_our_meaning_and_win(tmp_path: Path) -> None:
    line = "--like trl --epsilon 0.3 --clip_high 0.5 --kl_coef 0.1"
    objective = read_train(line.split())[0].args.objective
    assert (objective.bounds, objective.kl_coef, objective.adv_eps) == ((0.7, 1.5), 0.1, 1e-4)
    file = tmp_path / "run.toml"
    file.write_text("kl_coef = 0.2\nseed = 4\n")
    call, _ = read_train(["--like", "trl", "--beta", "0.7", "--config", str(file)])
    assert (call.args.objective.kl_coef, call.args.seed) == (0.2, 4)


def test_pairs_switches_and_whole_names_are_read_as_the_other_trainer_reads_them() -> None:
    line = "--like openrlhf --actor.eps_clip_low_high 0.2 0.3 --algo.kl.use_loss --algo.kl.estimator k3"
    objective = read_train(line.split())[0].args.objective
    assert (objective.bounds, objective.kl_place) == ((0.8, 1.3), "loss")
    line = "--like verl adv_estimator=grpo actor_rollout_ref.actor.clip_ratio_high=0.28 --use-kl-loss true"
    objective = read_train(line.split())[0].args.objective
    assert (objective.baseline, objective.bounds, objective.kl_place) == ("mean", (0.8, 1.28), "loss")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--like tlr", "one of trl, verl, openrlhf"),
        ("--like TRL", "Got 'TRL' instead. Did you mean 'trl'?"),
        ("--like trl --loss_type DAPO", "Got 'DAPO' instead. Did you mean 'dapo'?"),
        ("--like trl --epsilon nan", "The 'epsilon' parameter of --like trl must be a finite number"),
        ("--like openrlhf --epsclip 0.1", "Did you mean '--actor.eps_clip'?"),
        ("--like openrlhf --loss_agg_mode token-mean", "Did you mean '--actor.loss_agg_mode'?"),
        ("--like openrlhf --algo.kl.estimater k3", "Did you mean '--algo.kl.estimator'?"),
        ("--like verl --clip_hihg 0.3", "Did you mean '--clip_high'?"),
        ("--like verl --clip_ratio_hihg 0.3", "Did you mean '--clip_ratio_high'?"),
        ("--like trl --preset dapo", "both say where the objective starts from"),
        ("--like trl --loss_type sapo", "loss_type"),
        ("--like trl --epsilon wide", "a number"),
        ("--like trl --epsilon", "'--epsilon' needs a value"),
        ("--like trl --epsilonn 0.3", "Did you mean '--epsilon'?"),
        ("--epsilon 0.3", "With --like trl it means what it means there"),
        ("--loss_agg_mode token-mean", "With --like verl it means what it means there"),
    ],
)
def test_a_wrong_setting_of_another_trainer_is_one_sentence(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(line, words, capsys)


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("--like trl --like=verl", "--like"),
        ("--like trl --epsilon 0.1 --epsilon 0.2", "--epsilon"),
        ("--like verl clip_ratio=0.1 clip_ratio=0.2", "clip_ratio"),
        ("--like verl clip_ratio=0.1 actor_rollout_ref.actor.clip_ratio=0.2", "actor_rollout_ref.actor.clip_ratio"),
    ],
)
def test_a_trainer_or_a_setting_of_its_that_is_there_twice_is_refused(
    line: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *line.split()]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"upweight: '{flag}' is there twice. Keep one of them.\n")


@pytest.mark.parametrize("line", ["-h --clip x", "--clip x --help", "--like TRL --clip 1 --clip 2 -h"])
def test_whoever_asks_for_help_gets_it_whatever_else_is_wrong(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *line.split()]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: upweight explain")
    assert "--like {trl,verl,openrlhf}" in shown


@pytest.mark.parametrize(
    ("word", "named", "hint"),
    [
        ("trainer.n_gpus=8", "trainer.n_gpus", "It knows adv_estimator, "),
        ("actor.clipratio=0.1", "actor.clipratio", "Did you mean 'clip_ratio'?"),
        ("+algorithm.x=1", "algorithm.x", "leave out what is none of them."),
        ("algorithm.filter_groups.enabled=true", "algorithm.filter_groups.enabled", "mean 'filter_groups.enable'?"),
    ],
)
@pytest.mark.parametrize("before", ["", "--json ", "--clip 0.1 ", "use_kl_loss=true "])
def test_a_word_that_is_no_setting_of_the_other_trainer_is_named(
    before: str, word: str, named: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--like", "verl", *f"{before}{word}".split()]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert f"must be a setting of verl 0.9.1 that decides the objective. Got '{named}' instead." in shown.err
    assert hint in shown.err


def test_a_value_of_our_own_flag_may_look_like_a_setting() -> None:
    call, _ = read_train(["--like", "verl", "adv_estimator=grpo", "--data", "set=train.jsonl", "--seed", "3"])
    assert (call.args.data, call.args.seed) == ("set=train.jsonl", 3)


def test_verls_null_is_none_and_a_plus_before_its_name_is_read() -> None:
    nulls = "rollout_correction.rollout_is=null rollout_correction.rollout_rs=null clip_ratio_low=null clip_ratio=0.3"
    line = f"--like verl adv_estimator=grpo {nulls} +reward.reward_kwargs.overlong_buffer_cfg.enable=True"
    objective = read_train([*line.split(), "++overlong_buffer_cfg.len=10"])[0].args.objective
    assert (objective.bounds, objective.correction, objective.overlong_buffer) == ((0.7, 1.2), "none", 10)
    assert (
        objective
        == translate(
            "verl",
            {
                "adv_estimator": "grpo",
                "clip_ratio_low": None,
                "clip_ratio": 0.3,
                "overlong_buffer_cfg.enable": True,
                "overlong_buffer_cfg.len": 10,
            },
        ).objective
    )


def test_a_switch_of_another_trainer_does_not_swallow_the_next_setting() -> None:
    objective = read_train(["--like", "verl", "--use_kl_loss", "adv_estimator=grpo"])[0].args.objective
    assert (objective.baseline, objective.kl_place, objective.kl_coef) == ("mean", "loss", 0.001)


def test_a_run_says_what_of_the_other_trainer_it_cannot_match(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--like", "trl", "--dry-run"]) == 0
    unmatched = translate("trl").unmatched
    assert unmatched
    shown = capsys.readouterr().out
    assert [sentence for sentence in unmatched if f"note: {sentence}" not in shown] == []
