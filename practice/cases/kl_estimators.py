"""Cases of kl_estimators."""

import math

from judging.case import Case

TITLE = "k1, k2 and k3: three estimates of one KL"
HINTS = (
    "Everything is a function of log r = ref_logprob - logprob; mind the order.",
    "k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r.",
    "For tiny log r, exp(log r) - 1 loses all digits: math.expm1 does not.",
    "In k3, replace log r by min(log r, 20) in both places, so that it is still never negative.",
)
LN2 = math.log(2.0)


def at(log_ratio: float) -> dict[str, object]:
    """Inputs whose log r is exactly the given one."""
    return {"logprob": 0.0, "ref_logprob": log_ratio}


CASES = (
    Case(
        name="the reference finds the token twice as likely",
        inputs=at(LN2),
        right=(-LN2, LN2**2 / 2, 1 - LN2),
        why="r = 2: -log 2, (log 2)^2 / 2, 2 - 1 - log 2",
        traps={"r was turned round: it is reference over policy": (LN2, LN2**2 / 2, LN2 - 0.5)},
    ),
    Case(
        name="the reference finds it half as likely",
        inputs=at(-LN2),
        right=(LN2, LN2**2 / 2, LN2 - 0.5),
        why="r = 1/2: log 2, the same square, 1/2 - 1 + log 2",
    ),
    Case(name="both agree", inputs={"logprob": -0.3, "ref_logprob": -0.3}, right=(0.0, 0.0, 0.0), rel=0, abs=0),
    Case(
        name="half a nat apart",
        inputs={"logprob": -1.0, "ref_logprob": -1.5},
        right=(0.5, 0.125, math.exp(-0.5) - 0.5),
        why="k3 = 0.6065307 - 1 + 0.5 = 0.1065307; times a coefficient of 0.1 it adds 0.01065307",
    ),
    Case(
        name="almost equal",
        inputs=at(1e-9),
        right=(-1e-9, 5e-19, 5e-19),
        rel=1e-6,
        abs=0.0,
        why="k3 = x^2 / 2 + x^3 / 6 + ...; exp(x) - 1 - x has a rounding error a hundred times larger",
    ),
    Case(
        name="far above",
        inputs=at(800.0),
        right=(-800.0, 320_000.0, math.exp(20.0) - 21.0),
        why="k3 stops growing at log r = 20; exp(800) is no float",
        traps={
            "only the exponential was bounded: k3 is then off, and its gradient points the wrong way": (
                -800.0,
                320_000.0,
                math.exp(20.0) - 801.0,
            )
        },
    ),
    Case(
        name="far below",
        inputs=at(-800.0),
        right=(800.0, 320_000.0, 799.0),
        why="r is 0 there: 0 - 1 + 800; no bound is needed below",
    ),
)
