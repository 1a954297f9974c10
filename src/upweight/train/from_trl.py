"""TRL's GRPOConfig as a configuration of ours, and what of it nothing here can stand for. Imports no torch."""

import dataclasses
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from upweight.objective.dialects import DIALECTS, translate
from upweight.objective.dialects.base import shown
from upweight.objective.errors import UsageError, bad_parameter, nearest
from upweight.objective.fields import must_be
from upweight.train.args import TrainArgs
from upweight.train.trl_fields import HANDED_ON, MAPPED, NOT_MAPPED, WITHOUT_MEANING

OWNER = "TRL's GRPOConfig"

_OBJECTIVE = {setting.name: setting for setting in DIALECTS["trl"].settings}

_KNOWN = frozenset({*MAPPED, *HANDED_ON, *NOT_MAPPED, *_OBJECTIVE, *WITHOUT_MEANING})

_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}

_AT_LEAST_ONE = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations", "num_generations")


@dataclass(frozen=True, kw_only=True, slots=True)
class FromTrl:
    """How a GRPOConfig was read."""

    args: TrainArgs
    """Ours."""

    says: tuple[str, ...]
    """One sentence for each thing that is called or counted differently here, and comes to the same."""

    unmatched: tuple[str, ...]
    """One sentence for each thing that cannot be matched here, and what happens instead."""

    reward_weights: tuple[float, ...] | None = None
    """TRL's weights of the reward functions, for `Trainer(reward_weights=...)`; None = they are 1."""


@dataclass(slots=True)
class _Reader:
    """A configuration's values, TRL's defaults filled in, while they are turned into ours."""

    values: Mapping[str, Any]
    rows: int | None
    fields: dict[str, Any] = field(default_factory=dict)
    says: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def say(self, sentence: str, **fields: object) -> None:
        """Set fields of ours; the sentence ends with them."""
        self.fields.update(fields)
        ours = ", ".join(f"{name}={shown(value)}" for name, value in fields.items())
        self.says.append(f"{sentence} ({ours})." if ours else f"{sentence}.")

    def miss(self, sentence: str) -> None:
        """Note something that cannot be matched."""
        self.unmatched.append(f"{sentence}.")


def read_trl(config: object, *, rows: int | None = None) -> FromTrl:
    """Read a GRPOConfig of TRL 1.16; see `TrainArgs.from_trl`, which prints what this returns as `unmatched`.

    TRL counts steps in optimiser updates and batches in answers; here a step is a sampled batch, in prompts:

        prompts_per_step = generation_batch_size / num_generations
        minibatches      = steps_per_generation / gradient_accumulation_steps
        epochs_per_batch = num_iterations
        a step           = minibatches x epochs_per_batch of TRL's steps

    Args:
        config: a GRPOConfig, anything with its attributes, or a dict of its fields. What is not there is as TRL has
            it by default.
        rows: size of the training data, which num_train_epochs counts in; None = not known.

    Returns:
        The configuration, and what to know about it.

    Raises:
        UsageError: a field that TRL 1.16 does not have, a value of a wrong type, or one that nothing here can stand
            for.

    Example:
        >>> found = read_trl({"loss_type": "dr_grpo", "num_generations": 4, "max_steps": 20, "report_to": "wandb"})
        >>> found.args.prompts_per_step, found.args.group_size, found.args.objective.loss_agg
        (2, 4, 'seq-mean-token-sum-norm')
        >>> print(found.unmatched[-1])
        report_to='wandb': metrics go to RUN/metrics.jsonl, and to no tracker.
    """
    given = _given(config)
    for name in given:
        _check_name(name)
    values = {name: _checked(name, given.get(name, known.default)) for name, known in MAPPED.items()}
    reader = _Reader(values=values, rows=rows)
    sampled = _batch(reader)
    settings = {
        name: value for name, value in given.items() if name in _OBJECTIVE and value != _OBJECTIVE[name].default
    }
    settings |= {"gradient_accumulation_steps": values["gradient_accumulation_steps"], "steps_per_generation": sampled}
    translation = translate("trl", settings, max_new_tokens=reader["max_completion_length"])
    _steps(reader)
    _schedule(reader)
    _sampling(reader)
    _saving(reader)
    _numbers(reader)
    for name, known in NOT_MAPPED.items():
        if name in given and not _is_default(given[name], known.defaults):
            reader.miss(f"{name}={_short(given[name])}: {known.here}")
    idle = sorted(name for name in given if name in WITHOUT_MEANING)
    if idle and not dataclasses.is_dataclass(config):
        reader.says.append(f"Of no meaning here: {', '.join(idle)}.")
    return FromTrl(
        args=TrainArgs(objective=translation.objective, **reader.fields),
        says=(*translation.says, *reader.says),
        unmatched=(*translation.unmatched, *reader.unmatched),
        reward_weights=_weights(given.get("reward_weights")),
    )


def _given(config: object) -> dict[str, Any]:
    """The fields that a configuration has, enumerations as their values."""
    if isinstance(config, Mapping):
        found = {str(name): value for name, value in config.items()}
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        # Fields of other versions of transformers are TRL's to judge: they come with their own defaults.
        found = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name in _KNOWN}
    elif hasattr(config, "__dict__") and not isinstance(config, type):
        found = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    else:
        raise bad_parameter("config", "TrainArgs.from_trl", "a GRPOConfig, or a dict of its fields", config)
    return {name: value.value if isinstance(value, enum.Enum) else value for name, value in found.items()}


def _check_name(name: str) -> None:
    if name not in _KNOWN:
        near = nearest(name, sorted(_KNOWN))
        hint = f" Did you mean '{near}'?" if near else " Leave it out."
        raise UsageError(f"'{name}' is not a field of {OWNER} ({DIALECTS['trl'].version}).{hint}")


def _checked(name: str, value: object) -> object:
    if must := must_be(MAPPED[name].kind, value):
        raise bad_parameter(name, OWNER, must, value)
    if name in _AT_LEAST_ONE and isinstance(value, int) and value < 1:
        raise bad_parameter(name, OWNER, "at least 1", value)
    return value


def _batch(reader: _Reader) -> int:
    """Batches and updates; returns TRL's steps_per_generation."""
    per_pass, accumulated = reader["per_device_train_batch_size"], reader["gradient_accumulation_steps"]
    group, iterations = reader["num_generations"], reader["num_iterations"]
    sampled, total = reader["steps_per_generation"], reader["generation_batch_size"]
    if total is None:
        sampled = sampled or accumulated
        total = per_pass * sampled
    elif sampled is None:
        if total % per_pass:
            must = f"a multiple of per_device_train_batch_size, {per_pass}"
            raise bad_parameter("generation_batch_size", OWNER, must, total)
        sampled = total // per_pass
    if total % group:
        must = f"a divisor of the sampled batch, which has {total} answers"
        raise bad_parameter("num_generations", OWNER, must, group)
    if sampled % accumulated == 0:
        prompts, updates = total // group, sampled // accumulated
    elif accumulated % sampled == 0 and iterations == 1:
        # Several batches are sampled from the same weights before an update: together they are one batch.
        prompts, updates = total * (accumulated // sampled) // group, 1
    else:
        must = f"a multiple of gradient_accumulation_steps, {accumulated}: a batch then makes whole updates"
        raise bad_parameter("steps_per_generation", OWNER, must, sampled)
    if updates > prompts:
        reader.miss(
            f"TRL makes {updates} updates of {prompts} prompts, which cuts groups apart; here a batch is split by "
            f"prompt, into {prompts}"
        )
        updates = prompts
    elif updates > 1:
        reader.say("TRL shuffles a batch's answers before it is split into updates; here groups stay whole")
    answers = f"{prompts * group} answers are sampled from the same weights, in groups of {group}"
    fields = {"prompts_per_step": prompts, "group_size": group, "minibatches": updates, "epochs_per_batch": iterations}
    reader.say(answers, **fields)
    return int(sampled)


def _updates(reader: _Reader) -> int:
    return int(reader.fields["minibatches"] * reader.fields["epochs_per_batch"])


def _steps(reader: _Reader) -> None:
    updates, prompts = _updates(reader), reader.fields["prompts_per_step"]
    if reader["max_steps"] > 0:
        sentence = f"max_steps={reader['max_steps']} counts updates, of which a step here makes {updates}"
        reader.say(sentence, max_steps=math.ceil(reader["max_steps"] / updates))
        return
    epochs = reader["num_train_epochs"]
    if reader.rows is None:
        reader.fields["max_steps"] = TrainArgs().max_steps
        reader.miss(
            f"num_train_epochs={shown(epochs)} counts rows, and how many there are was not said (rows=len(dataset)): "
            f"here max_steps is {TrainArgs().max_steps}"
        )
        return
    steps = max(1, math.ceil(epochs * math.ceil(reader.rows / prompts)))
    sentence = f"num_train_epochs={shown(epochs)} over {reader.rows} rows, {prompts} of them a step; the last batch of "
    reader.say(sentence + "an epoch may be smaller, where TRL drops it", max_steps=steps)


def _schedule(reader: _Reader) -> None:
    kind, updates, steps = reader["lr_scheduler_type"], _updates(reader), reader.fields["max_steps"]
    ours = _SCHEDULES.get(kind) or ("cosine" if kind.startswith("cosine") else "linear")
    if kind not in _SCHEDULES:
        reader.miss(f"lr_scheduler_type={kind}: here it is {ours}")
    given = reader["warmup_steps"] or reader["warmup_ratio"] or 0
    warm_up = math.ceil(steps * given) if given < 1 else math.ceil(given / updates)
    if kind == "constant" and warm_up:
        reader.say("lr_scheduler_type=constant does not read the warm-up")
        warm_up = 0
    if warm_up:
        reader.say("TRL's warm-up starts with an update at 0; here its first step is at peak / lr_warmup_steps")
    if updates > 1:
        reader.say("TRL moves the learning rate at every update, and here every step has one")
    fields = {"learning_rate": reader["learning_rate"], "lr_schedule": ours, "lr_warmup_steps": warm_up}
    reader.say(f"The learning rate of {kind}", **fields)
    if reader["weight_decay"]:
        reader.miss("TRL's weight decay leaves biases and norms out; here it is of every parameter")
    reader.fields |= {"weight_decay": reader["weight_decay"], "max_grad_norm": reader["max_grad_norm"]}


def _sampling(reader: _Reader) -> None:
    budget = reader["max_completion_length"]
    if budget is None:
        reader.miss("max_completion_length=none is no limit; here the task's budget holds")
    top_k = reader["top_k"] or 0
    reader.fields |= {"temperature": reader["temperature"], "top_p": reader["top_p"], "top_k": top_k}
    reader.fields["max_new_tokens"] = budget
    if reader["top_p"] < 1 or top_k > 0:
        reader.say("With top_p or top_k TRL's log-probabilities are of all tokens; here of those that were kept")


def _saving(reader: _Reader) -> None:
    reader.fields["output_dir"] = reader["output_dir"]
    reader.fields["save_every"] = _every(reader, "save_strategy", reader["save_steps"])
    reader.fields["keep_checkpoints"] = reader["save_total_limit"] or 0
    every = reader["eval_steps"] or reader["logging_steps"]
    reader.fields["eval_every"] = _every(reader, "eval_strategy", every)
    if reader["eval_strategy"] != "no":
        reader.say("An evaluation is greedy accuracy here, and the mean reward of sampled answers in TRL")


def _every(reader: _Reader, strategy: str, count: float) -> int:
    """A count of TRL's updates, or a share of the run, in steps; 0 = never."""
    kind, steps = reader[strategy], reader.fields["max_steps"]
    if kind == "no":
        return 0
    if kind == "steps":
        return max(1, math.ceil(steps * count) if count < 1 else math.ceil(count / _updates(reader)))
    if kind == "epoch" and reader.rows is not None:
        return math.ceil(reader.rows / int(reader.fields["prompts_per_step"]))
    why = " without the number of rows" if kind == "epoch" else ""
    reader.miss(f"{strategy}={kind}{why}: here at the end alone")
    return 0


def _numbers(reader: _Reader) -> None:
    """Seed, dtype, device."""
    reader.fields["seed"] = reader["seed"]
    bf16 = not reader["fp16"] if reader["bf16"] is None else reader["bf16"]
    if bf16:
        sentence = "bf16 (TRL's default): passes in bfloat16; here the weights of the passes are as well, and AdamW's "
        reader.say(sentence + "own stay float32", dtype="bfloat16")
    else:
        reader.fields["dtype"] = "float32"
    if reader["fp16"]:
        reader.miss("fp16=true: here passes are in float32")
    if reader["use_cpu"]:
        reader.fields["device"] = "cpu"


def _is_default(value: object, defaults: tuple[object, ...]) -> bool:
    return any(value == default and isinstance(value, bool) is isinstance(default, bool) for default in defaults)


def _weights(value: object) -> tuple[float, ...] | None:
    """The weights of the reward functions; how many there must be is for `Trainer` to say, which has the functions."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or any(must_be(float, weight) for weight in value):
        raise bad_parameter("reward_weights", OWNER, "a list of finite numbers, or none", value)
    return tuple(map(float, value))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
