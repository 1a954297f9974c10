"""A solution of expected_gradients."""

import math


def expected_gradients(policy: float, reference: float) -> tuple[float, float, float, float]:
    """Both outcomes weighed by their chances; k2 has the KL's gradient, k3 that of KL(p || q)."""
    k1 = k2 = k3 = 0.0
    outcomes = ((policy, reference, 1 - policy), (1 - policy, 1 - reference, -policy))
    for chance, reference_chance, score in outcomes:
        log_ratio = math.log(reference_chance / chance)
        k1 += chance * score
        k2 += chance * -log_ratio * score
        k3 += chance * (1 - reference_chance / chance) * score
    true = policy * (1 - policy) * (math.log(policy / reference) - math.log((1 - policy) / (1 - reference)))
    return k1, k2, k3, true
