"""TRL's side, in a process of its own: GRPOTrainer as a user runs it, one step at each request."""

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch
import trl
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from speed.channel import Channel
from speed.workload import Reward, rows


class Turns(TrainerCallback):
    """Lets the trainer take a step when it is asked to, and says what the step came to."""

    def __init__(self, channel: Channel, reward: Reward) -> None:
        self.channel, self.reward = channel, reward
        self.trainer: GRPOTrainer | None = None
        self.begun = False

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Everything of a step comes after this: sampling, rewards, passes, the optimiser."""
        if not self.begun:
            self.begun = True
            self.channel.reply({"version": trl.__version__})
        if self.channel.take() is None:
            os._exit(0)  # The measurements are over, and the trainer has no way to be told between two steps.

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Reply."""
        if self.trainer is None:
            raise AssertionError("the trainer is bound before it trains")
        quiet = self.trainer._metrics["train"]["frac_reward_zero_std"][-1]
        self.channel.reply(self.reward.counted() | {"informative": 1.0 - quiet})


def config(setup: dict[str, Any], folder: str) -> GRPOConfig:
    """The same step as ours: the settings that decide what is computed are the same, the rest is TRL's own."""
    batch = setup["peer_batch"]
    half = setup["dtype"] == "bfloat16"
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        model_init_kwargs={"dtype": setup["peer_weights"] if half else "float32"},
        # Half-precision weights are computed with as they are; float32 ones through autocast.
        bf16=half and setup["peer_weights"] == "float32",
        gradient_checkpointing=setup["peer_checkpointing"],
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=setup["prompts"] * setup["answers"] // batch,
        num_generations=setup["answers"],
        max_completion_length=setup["new_tokens"],
        # The end token is forbidden until the budget is used up, so that every answer is that long.
        generation_kwargs={"min_new_tokens": setup["new_tokens"]},
        temperature=1.0,
        beta=setup["kl"],
        loss_type="dapo",
        scale_rewards="group",
        learning_rate=setup["lr"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        max_steps=setup["steps"],
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main() -> None:
    """Set up, then one step a request."""
    channel = Channel()
    setup = channel.take()
    if setup is None:
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(setup["threads"])
    reward = Reward()
    turns = Turns(channel, reward)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=setup["folder"],
            reward_funcs=reward,
            args=config(setup, folder),
            train_dataset=Dataset.from_list(rows(setup["prompts"], setup["steps"], setup["informative"])),
            processing_class=AutoTokenizer.from_pretrained(setup["folder"]),
            callbacks=[turns],
        )
        turns.trainer = trainer
        trainer.train()


if __name__ == "__main__":
    main()
