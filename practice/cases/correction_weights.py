"""Cases of correction_weights."""

import math

from judging.case import Case, Raises

NAN = float("nan")
TITLE = "TIS and MIS: when the sampler's probabilities are not the trainer's"
HINTS = (
    "The ratio is trainer over sampler: exp(old - sampler). Where the sampler's is NaN, take the log-ratio as 0.",
    'Level "sequence" adds the log-ratios of the answer and gives every token the same ratio.',
    "Clamp the log-ratio to [-20, 20] before exp. tis: min(ratio, cap). mis: ratio where it is at most cap, else 0.",
)


def at(ratios: list[float], kind: str, level: str = "token", cap: float = 2.0) -> dict[str, object]:
    """Inputs whose token ratios are the given ones."""
    old = [math.log(ratio) - 5.0 for ratio in ratios]
    return {"old_logprobs": old, "sampler_logprobs": [-5.0] * len(ratios), "kind": kind, "cap": cap, "level": level}


CASES = (
    Case(
        name="plain importance sampling",
        inputs=at([0.5, 1.0, 19.7], "is"),
        right=[0.5, 1.0, 19.7],
        traps={"the ratio was turned round: it is trainer over sampler": [2.0, 1.0, 1 / 19.7]},
    ),
    Case(
        name="truncated at the cap",
        inputs=at([0.5, 1.0, 19.7], "tis"),
        right=[0.5, 1.0, 2.0],
        why="min(ratio, 2): the one-sided cap leaves small ratios as they are",
        traps={"that dropped the token, which is MIS": [0.5, 1.0, 0.0]},
    ),
    Case(
        name="dropped above the cap",
        inputs=at([0.5, 1.0, 19.7], "mis"),
        right=[0.5, 1.0, 0.0],
        why="19.7 is above 2; the ones that stay keep their ratio",
        traps={
            "that truncated the token, which is TIS": [0.5, 1.0, 2.0],
            "the ones that stay keep their ratio, not 1": [1.0, 1.0, 0.0],
        },
    ),
    Case(
        name="exactly at the cap",
        inputs={
            "old_logprobs": [-math.log(2.0)],
            "sampler_logprobs": [-2 * math.log(2.0)],
            "kind": "mis",
            "cap": 2.0,
            "level": "token",
        },
        right=[2.0],
        why="dropped is what is above the cap",
    ),
    Case(
        name="a token that the sampler could not score",
        inputs={
            "old_logprobs": [-0.2, -1e-6],
            "sampler_logprobs": [-0.2, NAN],
            "kind": "tis",
            "cap": 2.0,
            "level": "token",
        },
        right=[1.0, 1.0],
        why="nothing is known about it, so nothing is corrected",
    ),
    Case(
        name="the product over an answer",
        inputs=at([1.3, 1.3, 1.3, 1.3], "mis", "sequence"),
        right=[0.0, 0.0, 0.0, 0.0],
        why="1.3^4 = 2.8561 is above 2, and the answer goes as a whole",
        traps={"that looked at each token alone": [1.3] * 4},
    ),
    Case(
        name="the product, truncated",
        inputs=at([4.0, 0.25, 1.5], "tis", "sequence"),
        right=[1.5, 1.5, 1.5],
        why="4 * 0.25 * 1.5",
        traps={"that is the geometric mean, which is no importance weight": [1.5 ** (1 / 3)] * 3},
    ),
    Case(
        name="a long answer",
        inputs=at([1.5] * 2000, "tis", "sequence", 5.0),
        right=[5.0] * 2000,
        why="the product has no float; its logarithm does",
    ),
    Case(
        name="no correction",
        inputs={
            "old_logprobs": [-1.0, NAN],
            "sampler_logprobs": [-9.0, NAN],
            "kind": "none",
            "cap": 2.0,
            "level": "token",
        },
        right=[1.0, 1.0],
        why="switched off, nothing is read",
    ),
    Case(name="a cap of 0", inputs=at([1.0], "tis", cap=0.0), right=Raises("ValueError")),
    Case(name="an unknown kind", inputs=at([1.0], "tiss"), right=Raises("ValueError")),
)
