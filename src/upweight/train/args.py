"""`TrainArgs`: the whole configuration of a run, flag by flag. Imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from upweight.objective.errors import UsageError, nearest
from upweight.objective.presets import preset
from upweight.objective.spec import Objective


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainArgs:
    """Configuration of `upweight train`. Batch sizes are in plain units; everything else is derived from them."""

    objective: Objective = None  # type: ignore[assignment]
    """The loss: see `Objective`. Its fields are flags of the same names. The preset's row where not given."""

    preset: str = "grpo"
    """Row of the preset table: what the objective is where it is not given. grpo, grpo-paper, dr-grpo, dapo, gspo,
    cispo."""

    model: str = "tiny"
    """tiny, smollm2-135m, a folder, a GGUF file, or a name on the Hugging Face hub."""

    task: str = "arithmetic"
    """Where prompts come from. arithmetic takes parameters: arithmetic:digits=2,terms=2,operators=+-,style=bare.
    rg:TASK is a task of reasoning-gym with its own scorer: rg:chain_sum:max_terms=3"""

    data: str | None = None
    """Rows (prompt, answer, other columns; GSM8K's, MATH's, verl's and verifiers' as well): a JSONL or Parquet file,
    or a Hugging Face data set, hf:NAME[:SPLIT]. Takes the place of the task."""

    eval_data: str | None = None
    """Held-out rows, likewise, evaluated before and after (the built-in tasks bring their own)."""

    prompt_too_long: Literal["error", "drop"] = "error"
    """A prompt that leaves no room for its answer in the context: refuse to start, or leave the row out. Never
    shortened."""

    reward: str | None = None
    """accuracy (maths), exact, gsm8k, format, overlong:max_length=512,buffer=64, length:max_length=512, a dotted path
    (mine.rewards.style) or file.py:function; several with weights: accuracy+0.2*format. Where not given, the task
    says."""

    isolate_rewards: bool = False
    """Run reward functions of your own in processes that are killed at reward_timeout, with limits on memory,
    processes and output. Each answer is a call of its own."""

    reward_timeout: float = 10.0
    """Seconds an answer may take with isolate_rewards, and a call of an async function without."""

    max_reward_errors: float = 0.25
    """Largest share of a step's answers that a reward function may raise or time out on; above it the run stops."""

    output_dir: str | None = None
    """Run folder; runs/MODEL-TASK-PRESET-TIME where not given. A folder that holds a run is refused
    without --resume."""

    seed: int = 0
    """Of everything random: data order, sampling noise, a fresh model, the warm-up."""

    max_steps: int = 400
    """Training steps: batches sampled and trained on."""

    prompts_per_step: int = 64
    """P: prompts per step. P x G answers are sampled."""

    group_size: int = 8
    """G: answers per prompt, the group that the baseline is made of."""

    minibatches: int = 1
    """M: the batch is split by prompt into M optimiser updates."""

    epochs_per_batch: int = 1
    """K: each batch is gone through K times; updates per step = M x K."""

    micro_batch_tokens: int = 4096
    """Tokens (padding included) of one forward and backward pass: bounds memory, never changes the result."""

    max_new_tokens: int | None = None
    """Budget of one answer in tokens; where not given, the task says."""

    temperature: float = 1.0
    """Of sampling, and of every log-probability the objective sees."""

    top_p: float = 1.0
    """Nucleus sampling; the kept set is replayed when the trainer scores the token."""

    top_k: int = 0
    """Top-k sampling, 0 = off; the kept set is replayed likewise."""

    resample_budget: int = 4
    """With resample: at most this many rounds of sampling a step."""

    when_starved: Literal["stop", "train", "skip"] = "train"
    """With resample, a step that has used up its budget and still lacks informative groups: stop the run after saving;
    train on those there are (without an update where there is none); or skip the update and keep them for the next
    step."""

    learning_rate: float | None = None
    """Peak of AdamW's learning rate; 5e-4 for a model below ten million parameters, 1e-5 for every
    other where not given."""

    lr_warmup_steps: int | None = None
    """Steps of linear warm-up from 0; a tenth of max_steps where not given."""

    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    """After the warm-up: constant, or down towards 0, which would be the step after max_steps."""

    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""

    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0 = never."""

    sft_steps: int | None = None
    """Supervised warm-up steps on worked answers, 0 = none; 400 for tiny on a task that has them and none otherwise
    where not given. tiny stops earlier, once its loss says that about a third is right. The result
    is cached."""

    save_every: int = 0
    """Write a checkpoint every so many steps; 0 = only at the end."""

    keep_checkpoints: int = 3
    """The newest checkpoints that are kept, beside the one with the best held-out accuracy; 0 = all."""

    eval_every: int = 0
    """Held-out greedy accuracy every so many steps; 0 = only before and after."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights and the passes. Log-softmax is float32 always."""

    fp32_head: bool = False
    """With bfloat16: the product with the head in float32 too, when sampling and when training. The logits are then no
    longer rounded to 8 bits."""

    device: str = "auto"
    """auto takes a GPU where there is one; or cpu, cuda, cuda:1."""

    @classmethod
    def from_flags(cls, **flags: Any) -> "TrainArgs":
        """A configuration from flat names, as on the command line: fields of the run and of the objective alike.

        Args:
            flags: field of `TrainArgs` or `Objective` -> value; `preset` gives what is not named, as `--preset` does.
                The flat mapping of a run's config.json is one of these.

        Raises:
            UsageError: no such flag, or no such preset.

        Example:
            >>> args = TrainArgs.from_flags(preset="dapo", clip_high=0.3, max_steps=20)
            >>> args.objective.clip_high, args.objective.filter_groups, args.max_steps
            (0.3, True, 20)
        """
        of_objective = {field.name for field in fields(Objective)}
        of_run = {field.name for field in fields(cls)} - {"objective"}
        for name in flags:
            if name not in of_objective | of_run:
                near = nearest(name, sorted(of_objective | of_run))
                hint = f" Did you mean '{near}'?" if near else ""
                raise UsageError(f"'{name}' is not a flag of upweight train.{hint}")
        args = cls(**{name: value for name, value in flags.items() if name in of_run})
        chosen = {name: value for name, value in flags.items() if name in of_objective}
        return replace(args, objective=replace(args.objective, **chosen))

    @classmethod
    def from_trl(cls, config: object, *, rows: int | None = None, say: Callable[[str], object] = print) -> "TrainArgs":
        """What a GRPOConfig of TRL 1.16 means here; says, one line each, what of it cannot be matched.

        The objective is read as `--like trl` reads it. TRL counts steps in updates, and batches in answers; see
        `upweight.train.from_trl.read_trl`, which also returns what is said, and what is merely called differently.

        Args:
            config: a GRPOConfig, anything with its attributes, or a dict of its fields.
            rows: size of the training data, which num_train_epochs counts in; None = not known.
            say: takes a line for each thing that cannot be matched.

        Raises:
            UsageError: a field that TRL does not have, a value of a wrong type, or one that nothing here can stand
                for.

        Example:
            >>> args = TrainArgs.from_trl({"max_steps": 20, "beta": 0.04, "push_to_hub": True})
            note: An answer that no reward function could score keeps its place in TRL's denominators, with \
advantage 0; here it leaves them.
            note: push_to_hub=True: nothing is uploaded.
            >>> args.max_steps, args.objective.kl_coef, args.objective.kl_grad
            (20, 0.04, 'reverse')
        """
        from upweight.train.from_trl import read_trl

        found = read_trl(config, rows=rows)
        for sentence in found.unmatched:
            say(f"note: {sentence}")
        if found.reward_weights is not None and any(weight != 1 for weight in found.reward_weights):
            weights = list(found.reward_weights)
            say(f"note: reward_weights={weights} are an argument of Trainer here: Trainer(reward_weights={weights}).")
        return found.args

    def __post_init__(self) -> None:
        if self.objective is not None:
            return
        budget = self.max_new_tokens
        # Types and ranges are for check_args to report, with everything else that is wrong.
        known_budget = budget if isinstance(budget, int) and budget > 0 else None
        row = self.preset if isinstance(self.preset, str) else "grpo"
        object.__setattr__(self, "objective", preset(row, max_new_tokens=known_budget))
