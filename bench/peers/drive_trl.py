"""Runs TRL's own lines on given tensors: advantages, sampler correction, denominators, split and loss.

Run by the python of TRL's environment: `python drive_trl.py REQUEST.json ANSWER.json`. Of GRPOTrainer only what
needs a model is replaced: sampling, the reward functions, and the forward pass, which hands out the log-probabilities
of the request. `_generate_and_score_completions`, `_prepare_inputs` and `_compute_loss` are TRL's.
"""

import json
import sys
import tempfile
import warnings
from collections import defaultdict, deque
from types import SimpleNamespace

import torch
import trl
from accelerate import Accelerator
from trl import GRPOConfig, GRPOTrainer

torch.set_default_dtype(torch.float64)
END, FIRST_ROW = 1, 10  # ids: the end token, and the prompt of row 0, so that a shuffled row still says which it is

COPIED = (
    "beta",
    "loss_type",
    "scale_rewards",
    "multi_objective_aggregation",
    "importance_sampling_level",
    "use_vllm",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
    "off_policy_mask_threshold",
    "mask_truncated_completions",
    "top_entropy_quantile",
    "num_iterations",
    "max_completion_length",
)
"""What GRPOTrainer's constructor copies from its configuration."""
CUT = ("gradient_accumulation_steps", "steps_per_generation")
"""How the batch is cut: set from the request's `micro_batches` and `minibatches`."""


def padded(rows: list[list[float]], width: int) -> torch.Tensor:
    return torch.tensor([row + [0.0] * (width - len(row)) for row in rows])


class Harness(GRPOTrainer):
    """GRPOTrainer without a model: the attributes its loss reads, and three methods that a model would answer."""

    def __init__(self, args: GRPOConfig, batch: dict, group_size: int) -> None:
        self.args, self.batch = args, batch
        self.width = max(len(row) for row in batch["logprobs"])
        self.logprobs = padded(batch["logprobs"], self.width).requires_grad_()
        self.accelerator = Accelerator(cpu=True)
        self.model, self.ref_model = torch.nn.Module(), torch.nn.Module()
        self.model.is_gradient_checkpointing = False
        self.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self._logs = {key: deque() for key in ("prompt", "completion", "advantages")}
        self._logs |= {key: defaultdict(deque) for key in ("rewards", "extra")}
        self._pending_extra_logs, self._pending_metrics = {}, {}
        self._step, self._buffered_inputs = 0, None
        self._tokenizer = self.processing_class = SimpleNamespace(pad_token_id=0)
        self.eos_token_ids = [END]
        self.num_generations = group_size
        self.reward_funcs, self.reward_func_names = [None], ["reward"]
        self.reward_weights = torch.ones(1)
        self.tools = self.environment_factories = self.environments = self.pad_to_multiple_of = None
        self._is_vlm = self.log_multimodal = self.aux_loss_enabled = self._entropy_bonus_enabled = False
        self.epsilon_low = args.epsilon
        self.epsilon_high = args.epsilon if args.epsilon_high is None else args.epsilon_high
        for name in COPIED:
            setattr(self, name, getattr(args, name))

    def _generate(self, prompts: list) -> tuple:
        rows = range(len(prompts))
        lengths = [len(row) for row in self.batch["logprobs"]]
        ends = [0 if cut else END for cut in self.batch["truncated"]]
        completions = [[2] * (length - 1) + [end or 2] for length, end in zip(lengths, ends, strict=True)]
        texts = [""] * len(prompts)
        return [[FIRST_ROW + i] for i in rows], completions, None, texts, self.batch["sampler"], {}, None, None

    def _calculate_rewards(self, *_: object) -> torch.Tensor:
        rewards = [float("nan") if reward is None else reward for reward in self.batch["rewards"]]
        return torch.tensor(rewards, dtype=torch.float64)[:, None]

    def _get_per_token_logps_and_entropies(self, model: object, input_ids: torch.Tensor, *_: object, **__: object):
        rows = input_ids[:, 0] - FIRST_ROW
        if model is self.ref_model:
            values = padded(self.batch["ref"], self.width)
        else:
            values = self.logprobs if torch.is_grad_enabled() else padded(self.batch["old"], self.width)
        return values[rows], torch.zeros(len(rows), self.width), None


def run(case: dict, batch: dict) -> dict:
    rows, cut = len(batch["logprobs"]), case["micro_batches"]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            report_to="none",
            per_device_train_batch_size=rows // cut,
            gradient_accumulation_steps=cut // case["minibatches"],
            steps_per_generation=cut,
            num_generations=case["group_size"],
            num_iterations=2,  # so that TRL computes the old log-probabilities instead of taking the current ones
            max_completion_length=case["max_new_tokens"],
            **{key: value for key, value in case["settings"].items() if key not in CUT},
        )
        trainer = Harness(args, batch, case["group_size"])
        inputs = [{"prompt": ""}] * rows
        torch.manual_seed(0)
        total = 0.0
        for _ in range(cut):
            micro_batch = trainer._prepare_inputs(inputs)
            loss = trainer.compute_loss(trainer.model, micro_batch)
            loss.backward()
            total += loss.item()
            trainer._step += 1
    gradient = trainer.logprobs.grad.tolist()
    advantages = list(trainer._logs["advantages"])
    lengths = [len(row) for row in batch["logprobs"]]
    return {
        "loss": total,
        "gradient": [row[:length] for row, length in zip(gradient, lengths, strict=True)],
        "advantages": advantages,
    }


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    results = {case["id"]: run(case, request["batches"][case["batch"]]) for case in request["cases"]}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump({"version": trl.__version__, "results": results}, file)
