"""Cases of sequence_ratio."""

import math

from judging.case import Case

NAN, INF = float("nan"), float("inf")
TITLE = "The sequence ratio: a geometric mean without overflow"
HINTS = (
    "Stay in log space: the geometric mean is exp of the mean of the log-ratios.",
    "Select the tokens with mask 1 before any arithmetic, and divide by their number.",
    "Clamp the mean to [-20, 20] before exp, and return 1.0 where no token counts.",
)
CASES = (
    Case(
        name="ratios 2 and 8",
        inputs={"logprobs": [math.log(0.2), math.log(0.8)], "old_logprobs": [math.log(0.1)] * 2, "mask": [1, 1]},
        right=4.0,
        why="sqrt(2 * 8)",
        traps={"that is the product": 16.0, "that is the arithmetic mean": 5.0},
    ),
    Case(
        name="a token under the mask",
        inputs={
            "logprobs": [math.log(0.2), NAN, math.log(0.8)],
            "old_logprobs": [math.log(0.1), -INF, math.log(0.1)],
            "mask": [1, 0, 1],
        },
        right=4.0,
        why="the mask selects, so its NaN is never read; the mean is over 2 tokens, not 3",
        traps={"the masked token was counted in the length": 16.0 ** (1 / 3)},
    ),
    Case(
        name="2,000 tokens of ratio 1.5",
        inputs={"logprobs": [-1.0] * 2000, "old_logprobs": [-1.0 - math.log(1.5)] * 2000, "mask": [1] * 2000},
        right=1.5,
        why="the product is 1.5^2000, about 1e352, which no float holds",
    ),
    Case(
        name="a long answer of rare tokens",
        inputs={"logprobs": [-9.0] * 500, "old_logprobs": [-9.5] * 500, "mask": [1] * 500},
        right=math.exp(0.5),
        why="both probabilities are 0 as floats, and their quotient is not a number",
    ),
    Case(
        name="half a log-ratio of 2,000",
        inputs={"logprobs": [-1.0, -1.0], "old_logprobs": [-2001.0, -1.0], "mask": [1, 1]},
        right=math.exp(20.0),
        why="the mean is 1,000, clamped to 20",
    ),
    Case(
        name="far down",
        inputs={"logprobs": [-3000.0], "old_logprobs": [-1.0], "mask": [1]},
        right=math.exp(-20.0),
        why="clamped on both sides",
        abs=0.0,
    ),
    Case(
        name="a single far token in a long answer",
        inputs={"logprobs": [-1.0] * 100, "old_logprobs": [-31.0, *[-1.0] * 99], "mask": [1] * 100},
        right=math.exp(0.3),
        why="30 / 100: the mean is clamped, not each token",
        traps={"each token was clamped before the mean": math.exp(0.2)},
    ),
    Case(name="no token counts", inputs={"logprobs": [NAN], "old_logprobs": [-1.0], "mask": [0]}, right=1.0),
)
