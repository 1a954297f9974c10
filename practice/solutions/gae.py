"""A solution of gae."""


def gae(rewards: list[float], values: list[float], mask: list[int], gamma: float, lam: float) -> list[float]:
    """Backwards over the tokens with mask 1."""
    advantages = [0.0] * len(rewards)
    next_value = next_advantage = 0.0
    for t in reversed(range(len(rewards))):
        if mask[t]:
            delta = rewards[t] + gamma * next_value - values[t]
            next_value, next_advantage = values[t], delta + gamma * lam * next_advantage
            advantages[t] = next_advantage
    return advantages
