"""transformers' side, in a process of its own: `generate` as it comes, and a training pass of the plain model."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from speed.channel import Handler, serve

Made = tuple[dict[str, Any], Handler]


def _model(setup: Mapping[str, Any]) -> Any:
    return AutoModelForCausalLM.from_pretrained(setup["folder"], dtype=getattr(torch, setup["dtype"])).eval()


def sample(setup: Mapping[str, Any]) -> Made:
    """Answers with their log-probabilities: `generate` over the batch, then the log-softmax of the scores it kept."""
    model, new = _model(setup), setup["new_tokens"]
    # Without an end token there is nothing to stop at: every answer is as long as its budget.
    model.generation_config = config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new,
        pad_token_id=0,
        num_return_sequences=setup["answers"],
        return_dict_in_generate=True,
        output_scores=True,
    )

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(request["seed"])
        width = max(len(prompt) for prompt in request["prompts"])
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in request["prompts"]])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in request["prompts"]])
        with torch.inference_mode():
            out = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
            tokens = out.sequences[:, width:]
            picked = [
                torch.log_softmax(scores.float(), dim=-1).gather(1, tokens[:, place, None])
                for place, scores in enumerate(out.scores)
            ]
            logprobs = torch.cat(picked, dim=1)
        return {"tokens": tokens.numel(), "logprobs": int(logprobs.isfinite().sum())}

    return {"version": transformers.__version__}, handle


def passes(setup: Mapping[str, Any]) -> Made:
    """Forward and backward over all sequences, in passes from `cuts`; logits of the scored positions alone."""
    model = _model(setup)
    answers = torch.tensor(setup["completions"])
    ids = torch.cat([torch.tensor(setup["prompts"]), answers[:, :-1]], dim=1)
    coefficients = torch.tensor(setup["coefficients"]).view(answers.shape)

    def handle(_: dict[str, Any]) -> dict[str, Any]:
        model.zero_grad(set_to_none=True)
        for start, end in setup["cuts"]:
            logits = model(input_ids=ids[start:end], use_cache=False, logits_to_keep=answers.shape[1]).logits
            chosen = answers[start:end, :, None]
            logprobs = torch.log_softmax(logits.float(), dim=-1).gather(2, chosen).squeeze(2)
            (logprobs * coefficients[start:end]).sum().backward()
        return {}

    return {"version": transformers.__version__}, handle


ROLES = {"sample": sample, "passes": passes}

if __name__ == "__main__":
    serve(lambda setup: ROLES[setup["role"]](setup))
