"""TIS and MIS: when the sampler's probabilities are not the trainer's.

Answers are sampled by an inference engine whose probabilities mu differ from the trainer's pi_old (kernels, precision,
batching). Each token's surrogate is then multiplied by a weight made from the ratio pi_old / mu:

    none   1
    is     ratio                                  unbiased, noisy
    tis    min(ratio, cap)                        truncated: some bias, bounded noise
    mis    ratio where ratio <= cap, else 0       dropped

Level "token" takes each token's own ratio; level "sequence" gives all tokens the product over the answer.

Source: truncated importance sampling for RL on language models, Yao et al. 2025.

Shape: two lists of n log-probabilities in, n weights out.

Edges:
- A sampler log-probability of NaN was not scored: its log-ratio counts as 0.
- The log-ratio at its level is clamped to [-20, 20] before exp.
- With "none" nothing is read at all.
- ValueError for an unknown kind or level, and for a cap that is not above 0.
"""


def correction_weights(
    old_logprobs: list[float], sampler_logprobs: list[float], kind: str, cap: float, level: str
) -> list[float]:
    """Weight of each token of one answer.

    >>> correction_weights([-1.0], [-1.0], kind="tis", cap=2.0, level="token")
    [1.0]
    """
    raise NotImplementedError("correction_weights is yours to write")
