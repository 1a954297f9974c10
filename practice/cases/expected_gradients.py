"""Cases of expected_gradients, for a policy of two outcomes."""

import math

from judging.case import Case

TITLE = "Which gradient does a KL loss term have?"
HINTS = (
    "d log q / d theta is 1 - q for the right outcome, and -q for the wrong one.",
    "With log r = log p - log q: the gradient of k1 is d log q, of k2 it is -log r * d log q, of k3 it is"
    " (1 - r) * d log q. The samples are fixed, so nothing else is differentiated.",
    "Weigh both outcomes by their chances under q and add. The true one differentiates q log(q/p) +"
    " (1-q) log((1-q)/(1-p)) by theta: q (1-q) times the difference of the two logarithms.",
)
CASES = (
    Case(
        name="a fair policy, a reference of 0.8",
        inputs={"policy": 0.5, "reference": 0.8},
        right=(0.0, 0.25 * math.log(0.25), -0.3, 0.25 * math.log(0.25)),
        why="k1: 0. k2 is the true gradient, -0.3465736. k3: 0.5 - 0.8, the gradient of the forward KL(p||q)",
        traps={
            "k3 as a loss term has the forward KL's gradient, q - p, not that of the KL it estimates": (
                0.0,
                0.25 * math.log(0.25),
                0.25 * math.log(0.25),
                0.25 * math.log(0.25),
            ),
        },
    ),
    Case(
        name="a rarely right policy",
        inputs={"policy": 0.2, "reference": 0.5},
        right=(0.0, 0.16 * math.log(0.25), -0.3, 0.16 * math.log(0.25)),
        why="0.2 * 0.8 * (log(0.4) - log(1.6)), and 0.2 - 0.5",
    ),
    Case(
        name="a policy above its reference",
        inputs={"policy": 0.9, "reference": 0.5},
        right=(0.0, 0.09 * math.log(9.0), 0.4, 0.09 * math.log(9.0)),
        why="0.9 * 0.1 * (log(1.8) - log(0.2)), and 0.9 - 0.5",
    ),
    Case(name="no difference", inputs={"policy": 0.3, "reference": 0.3}, right=(0.0, 0.0, 0.0, 0.0)),
)
