"""The process that `plan.py` measures: takes real steps as it is told, and says what they took."""

import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from speed import machine
from transformers import LlamaConfig, LlamaForCausalLM

from upweight.policy.load import load_policy
from upweight.policy.policy import Policy
from upweight.policy.tiny import byte_tokenizer
from upweight.policy.variants import layers_recomputed
from upweight.report.shapes import Shape
from upweight.rewards.runner import make_runner
from upweight.rollout.completion import Sampling
from upweight.rollout.engine import LocalEngine
from upweight.tasks.prompt import Draw, Prompt
from upweight.train.args import TrainArgs
from upweight.train.optimizer import MasterAdamW
from upweight.train.records import Sampled
from upweight.train.source import SamplingSource
from upweight.train.step import Learner, training_step


class Timed(SamplingSource):
    """Says how much of the processor's time sampling took."""

    seconds = 0.0

    def next_groups(self, count: int) -> Sampled:
        """See `GroupSource.next_groups`."""
        started = time.process_time()
        groups = super().next_groups(count)
        self.seconds = time.process_time() - started
        return groups


class Stream:
    """Row after row."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, n: int) -> list[Draw]:
        """The next rows."""
        first, self.taken = self.taken, self.taken + n
        return [Draw(prompt=Prompt(row=row, text=str(row)), number=row) for row in range(first, self.taken)]

    def state_dict(self) -> dict[str, int]:
        """The position."""
        return {"taken": self.taken}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position."""
        self.taken = state["taken"]


def by_place(completions: Sequence[str], **_: object) -> list[float]:
    """Every other answer is right, so that every group carries a signal."""
    return [float(place % 2) for place in range(len(completions))]


def policy_of(model: str, shape: Shape, dtype: str) -> Policy:
    """The real model, or one of random weights; nothing ends an answer but its budget."""
    if model == "smollm2-135m":
        policy = load_policy(model, dtype=dtype, device="cpu")
    else:
        config = LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.feed_forward,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_heads,
            head_dim=shape.head_size,
            tie_word_embeddings=shape.tied,
            bos_token_id=None,
            eos_token_id=257,
            pad_token_id=256,
        )
        torch.manual_seed(0)
        weights = LlamaForCausalLM(config).to(getattr(torch, dtype))
        policy = Policy(model=weights, tokenizer=byte_tokenizer(), name=model)
    policy.end_ids = frozenset()
    return policy


def learner_of(told: Mapping[str, Any]) -> tuple[Learner, Timed]:
    """What steps work on."""
    shape = Shape(**told["shape"])
    policy = policy_of(told["model"], shape, told["dtype"])
    if told["checkpointing"]:
        layers_recomputed(policy.model)

    def encode(prompt: Prompt) -> list[int]:
        return [(prompt.row * 7919 + place * 31) % shape.vocabulary for place in range(told["prompt_tokens"])]

    source = Timed(
        stream=Stream(),
        engine=LocalEngine(policy),
        encode=encode,
        decode=lambda ids: "",
        runner=make_runner(by_place),
        sampling=Sampling(max_new_tokens=told["new_tokens"]),
        group_size=told["group_size"],
        context_length=policy.context_length,
    )
    args = TrainArgs.from_flags(
        kl_coef=0.04 if told["has_reference"] else 0.0,
        prompts_per_step=told["prompts"],
        max_steps=told["steps"],
        learning_rate=1e-6,
        lr_warmup_steps=0,
        max_new_tokens=told["new_tokens"],
        **{name: told[name] for name in ("group_size", "micro_batch_tokens", "dtype")},
    )
    learner = Learner(
        policy=policy,
        reference=policy.frozen_copy() if told["has_reference"] else None,
        optimizer=MasterAdamW(policy.model.parameters(), weight_decay=0.0),
        source=source,
        args=args,
    )
    return learner, source


def main() -> None:
    """Take steps, and print what they took."""
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    machine.give_back_free_memory()
    base = machine.own_bytes("VmRSS")
    learner, source = learner_of(told)
    whole, sampling = [], []
    for number in range(told["steps"]):
        started = time.process_time()
        training_step(learner, number + 1)
        whole.append(time.process_time() - started)
        sampling.append(source.seconds)
    peak = machine.own_bytes("VmHWM")
    if base is None or peak is None:
        raise SystemExit("This system does not say how much memory a process takes.")
    said = {
        "base": base,
        "peak": peak,
        "seconds": statistics.median(whole[1:] or whole),
        "sample_seconds": statistics.median(sampling[1:] or sampling),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
