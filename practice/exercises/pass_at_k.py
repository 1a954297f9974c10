"""pass@k without bias.

pass@k is the chance that at least one of k answers is right. From n sampled answers, c of them right, the plug-in
1 - (1 - c/n)^k is biased, because it draws with replacement from a sample. Count instead the draws of k out of the n
that hold no right answer:

    pass@k = 1 - C(n - c, k) / C(n, k)

Source: "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, equation 1.

Shape: whole numbers in, one number in [0, 1] out.

Edges:
- Fewer than k wrong answers: 1.0.
- n of 10,000 must neither overflow nor lose digits.
- ValueError unless 0 <= c <= n and 1 <= k <= n.
"""


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of the n answers, drawn without replacement, hold one of the c right ones.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    raise NotImplementedError("pass_at_k is yours to write")
