"""The preset table: an algorithm is a row of choices, not a class. Imports no torch."""

import dataclasses
from collections.abc import Mapping

from upweight.objective.errors import bad_parameter
from upweight.objective.spec import Objective

PRESETS: Mapping[str, Mapping[str, object]] = {
    "grpo": {},
    "grpo-paper": {"loss_agg": "seq-mean-token-mean"},
    "dr-grpo": {"adv_norm": "none", "loss_agg": "seq-mean-token-sum-norm", "kl_coef": 0.0},
    "dapo": {"clip_high": 0.28, "filter_groups": True, "resample": True, "kl_coef": 0.0},
    "gspo": {
        "ratio_level": "sequence",
        "clip": 0.0003,
        "clip_high": 0.0004,
        "loss_agg": "seq-mean-token-mean",
        "kl_coef": 0.0,
    },
    "cispo": {"surrogate": "cispo", "clip": 1.0, "clip_high": 4.0, "kl_coef": 0.0},
    "ppo": {"baseline": "critic", "gae_lambda": 1.0},
}
"""Name -> the fields in which it differs from the defaults.

`dapo` also stands for an overlong penalty; its buffer depends on the generation budget, so
`preset` takes it from there: a fifth of the budget, as DAPO's 4,096 of 20,480.
"""

DAPO_BUFFER_SHARE = 5
"""The overlong buffer of `dapo` is the generation budget divided by this (DAPO, section 4.1: 4,096 tokens after the
16,384 that are free of it, 20,480 in all)."""


def preset(name: str, *, max_new_tokens: int | None = None) -> Objective:
    """The objective a preset stands for.

    Args:
        name: a row of `PRESETS`.
        max_new_tokens: generation budget in tokens; only `dapo` reads it, for its overlong buffer
            (off where it is not given).

    Raises:
        UsageError: no such row.

    Example:
        >>> preset("dr-grpo").loss_agg
        'seq-mean-token-sum-norm'
    """
    if name not in PRESETS:
        raise bad_parameter("preset", "upweight", f"one of {', '.join(PRESETS)}", name)
    fields = dict(PRESETS[name])
    if name == "dapo" and max_new_tokens is not None:
        fields["overlong_buffer"] = max_new_tokens // DAPO_BUFFER_SHARE
    return dataclasses.replace(Objective(), **fields)  # type: ignore[arg-type]
