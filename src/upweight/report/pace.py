"""How long a training step takes, from its operations and a peak. Imports no torch."""

from dataclasses import dataclass

from upweight.report.footprint import Setup

CORE_PEAK = {"bfloat16": 0.08e12, "float32": 0.16e12}
"""FLOP/s of one core in products of large matrices: measured on an Intel Xeon with AVX-512 and without AMX."""

GPU_PEAK = {"bfloat16": 312e12, "float32": 19.5e12}
"""FLOP/s: the published dense peaks of an A100. Assumed where --tflops is not given."""

PASSES = {"cpu": 0.60, "gpu": 0.40}
"""Share of the peak that training passes reach: on a CPU as measured by bench/plan.py, on a GPU assumed."""

SAMPLING = {"cpu": 0.35, "gpu": 0.05}
"""Share of the peak that sampling reaches: on a CPU as measured by bench/plan.py, on a GPU assumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The time of a step, each process working on its share."""

    sampling: float
    """Seconds."""

    scoring: float
    """Seconds of passes without a gradient: the reference's, and the policy's where old log-probs are asked for."""

    training: float
    """Seconds of forward and backward passes."""

    peak: float
    """FLOP/s assumed of each process."""

    share_of_passes: float
    """Of that peak."""

    share_of_sampling: float
    """Of that peak."""

    says: str
    """Where these are from."""

    @property
    def seconds(self) -> float:
        """Of a step; rewards, the update itself and what processes tell each other are left out."""
        return self.sampling + self.scoring + self.training


def pace(
    setup: Setup,
    *,
    scored_before: bool = False,
    epochs: int = 1,
    cores: int = 1,
    tflops: float | None = None,
    share_of_passes: float | None = None,
    share_of_sampling: float | None = None,
) -> Pace:
    """Estimate the time of a step in which every group carries a signal and every answer uses its budget.

    A token costs 2 operations for each weight it is multiplied with, and 4 L H D for each token it looks at; a backward
    pass costs twice its forward, and once more the forward where activations are made again.

    Args:
        setup: the model and the run.
        scored_before: whether a pass is made for the old log-probs.
        epochs: how often a batch is gone through.
        cores: of a CPU.
        tflops: peak of a process in 10^12 operations a second; None = the assumed one.
        share_of_passes: that training passes reach, in (0, 1]; None = the assumed one.
        share_of_sampling: that sampling reaches, likewise.

    Example:
        >>> from upweight.report.shapes import SHAPES
        >>> setup = Setup(shape=SHAPES["tiny"], device="cpu", prompt_tokens=6, new_tokens=8)
        >>> round(pace(setup, tflops=0.1, share_of_passes=0.5).training, 2)
        0.56
    """
    if tflops is not None:
        peak, source = tflops * 1e12, "as given"
    elif setup.device == "cpu":
        peak, source = cores * CORE_PEAK[setup.dtype], f"{cores} cores, as measured on an Intel Xeon with AVX-512"
    else:
        peak, source = GPU_PEAK[setup.dtype], "an A100's published peak, assumed"
    passes = PASSES[setup.device] if share_of_passes is None else share_of_passes
    sampling = SAMPLING[setup.device] if share_of_sampling is None else share_of_sampling
    basis = "measured on such a CPU" if setup.device == "cpu" else "assumed, not measured"
    given = [share for share in (share_of_passes, share_of_sampling) if share is not None]
    basis = ("as given", f"the other {basis}", basis)[0 if len(given) == 2 else 1 if given else 2]
    forward = _forward(setup, once=setup.compact)
    backward = 4 if setup.checkpointing else 3
    models = int(setup.has_reference) + int(scored_before)
    return Pace(
        sampling=_forward(setup, once=True) / (peak * sampling),
        scoring=models * forward / (peak * passes),
        training=epochs * backward * forward / (peak * passes),
        peak=peak,
        share_of_passes=passes,
        share_of_sampling=sampling,
        says=f"{peak / 1e12:.3g} TFLOP/s ({source}), of which passes reach {passes:.0%} and sampling {sampling:.0%} "
        f"({basis})",
    )


def _forward(setup: Setup, *, once: bool) -> float:
    """Operations of one forward over a process's share of a step; `once` = a prompt serves all of its answers."""
    shape, prompts, group = setup.shape, setup.own_prompts, setup.group_size
    before, after = setup.prompt_tokens, setup.new_tokens
    read = prompts * before * (1 if once else group)
    made = prompts * group * after
    products = 2.0 * (shape.body * (read + made) + shape.table * made)
    looked_at = read * before / 2 + made * (before + after / 2)
    return products + 4.0 * shape.layers * shape.queries * looked_at
