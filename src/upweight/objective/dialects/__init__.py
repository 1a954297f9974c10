"""Other trainers' settings, translated: the same objective under TRL's, verl's or OpenRLHF's names. Imports no torch.

Two trainers that both say "GRPO" differ in the std's epsilon, in denominators, in which gradient the KL has and in
what a clip bound counts from. A dialect is one trainer's names, defaults and conventions, read from its source;
`translate` turns settings into our `Objective`, and says what cannot be matched. `bench/peers.py` runs the trainers'
own loss code against the result.
"""

from collections.abc import Mapping

from upweight.objective.dialects.base import Dialect, Setting, Translation
from upweight.objective.dialects.openrlhf import OPENRLHF
from upweight.objective.dialects.trl import TRL
from upweight.objective.dialects.verl import VERL
from upweight.objective.errors import bad_parameter, nearest

__all__ = ["DIALECTS", "Dialect", "Setting", "Translation", "translate"]

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (TRL, VERL, OPENRLHF)}
"""Name -> the trainer's conventions."""

_NO_SETTINGS: Mapping[str, object] = {}


def translate(
    trainer: str, settings: Mapping[str, object] = _NO_SETTINGS, *, max_new_tokens: int | None = None
) -> Translation:
    """What another trainer's settings mean here.

    Starts from that trainer's own defaults, not from ours, and decides every field that it decides.

    Args:
        trainer: "trl", "verl" or "openrlhf".
        settings: its settings under its own names, typed as it types them (true and false, numbers, names; a pair of
            numbers as a list or as "0.2 0.28"). verl's names may be whole paths.
        max_new_tokens: generation budget in tokens where it is known; held against divisors that the trainer sets
            by itself.

    Returns:
        The objective, a sentence for each convention, and one for each thing that cannot be matched.

    Raises:
        UsageError: no such trainer or setting (the nearest name is offered), a value of a wrong type or out of
            range, or one that nothing here can stand for.

    Example:
        >>> translation = translate("trl", {"loss_type": "cispo", "epsilon_high": 5, "beta": 0})
        >>> translation.objective.surrogate, translation.objective.bounds
        ('cispo', (0.0, 5.0))
        >>> print(translation.says[3])
        epsilon_high=5 is CISPO's absolute ceiling, without a floor, and our bounds are 1 - clip and 1 + clip_high \
(surrogate=cispo, clip=1, clip_high=4).
    """
    if trainer not in DIALECTS:
        offer = nearest(trainer, DIALECTS)
        way_out = f"Did you mean '{offer}'?" if offer else ""
        raise bad_parameter("like", "upweight", f"one of {', '.join(DIALECTS)}", trainer, way_out)
    return DIALECTS[trainer].translate(settings, max_new_tokens)
