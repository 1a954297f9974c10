"""GAE over the tokens that count.

PPO's critic gives each token a value V_t; generalised advantage estimation mixes one-step and whole-answer estimates:

    delta_t = r_t + gamma V_{t+1} - V_t
    A_t = delta_t + gamma lam A_{t+1}

going backwards from the last token, after which V and A are 0.

Source: arXiv 1506.02438, equations 11 and 16.

Shape: lists of T rewards, values and mask (0 or 1) in, T advantages out.

Edges:
- Tokens with mask 0 are stepped over: t + 1 is the next token with mask 1, also across a gap in the middle (the output
  of a tool). Their rewards and values may be NaN; their advantage is 0.0.
- The value of a pad after the last token is a number like any other to a critic. It must not leak in.
"""


def gae(rewards: list[float], values: list[float], mask: list[int], gamma: float, lam: float) -> list[float]:
    """Advantage of each token of one answer.

    >>> gae([0.0, 1.0], [0.5, 0.5], [1, 1], gamma=1.0, lam=1.0)
    [0.5, 0.5]
    """
    raise NotImplementedError("gae is yours to write")
