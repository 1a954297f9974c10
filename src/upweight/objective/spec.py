"""`Objective`: every choice that makes up a loss, as one frozen record. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

Scale = Literal["std", "none", "batch"]
Baseline = Literal["mean", "leave-one-out", "critic"]
LossAgg = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "group-mean-token-mean"]
Surrogate = Literal["clip", "cispo", "none"]
RatioLevel = Literal["token", "sequence"]
KLEstimator = Literal["k1", "k2", "k3"]
KLGrad = Literal["naive", "reverse"]
KLPlace = Literal["loss", "reward"]
Correction = Literal["none", "is", "tis", "mis"]
CorrectionLevel = Literal["token", "sequence", "geometric"]
MaskedTokens = Literal["keep", "valid"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """The objective, flag by flag. The defaults are the preset `grpo`.

    L = - sum_t w_t c_t f(rho_t, A_t) + kl_coef sum_t w_t KL_t, over the tokens of one optimiser step.
    """

    adv_norm: Scale = "std"
    """Divide the centred rewards by their group's std, by nothing, or by the batch's std."""

    adv_ddof: int = 1
    """Delta degrees of freedom of that std: 1 divides by n - 1, 0 by n."""

    adv_eps: float = 1e-6
    """Added to that std."""

    baseline: Baseline = "mean"
    """Subtract the group's mean, or the mean of the other answers. A critic (PPO) is not built in yet."""

    gae_lambda: float = 1.0
    """Lambda of generalised advantage estimation; read only with a critic."""

    loss_agg: LossAgg = "token-mean"
    """How the loss is averaged: the weights w_t."""

    surrogate: Surrogate = "clip"
    """PPO's clipped surrogate, CISPO's clipped detached weight, or the bare ratio."""

    clip: float = 0.2
    """Lower bound 1 - clip, and upper bound 1 + clip unless clip_high is given."""

    clip_high: float | None = None
    """Upper bound 1 + clip_high; the same as clip where not given."""

    dual_clip: float | None = None
    """Floor of the objective at dual_clip * A for A < 0; above 1. Off where not given."""

    ratio_level: RatioLevel = "token"
    """One importance ratio per token, or one per answer (the geometric mean over its tokens: GSPO)."""

    kl_coef: float = 0.04
    """Weight of the KL to the reference policy. At 0 no reference model is loaded."""

    kl_estimator: KLEstimator = "k3"
    """Estimator of the KL in the loss. In the reward it is always k1."""

    kl_grad: KLGrad = "naive"
    """Differentiate the estimator as it stands, or multiplied by the ratio (k1, k3: reverse KL per position)."""

    kl_place: KLPlace = "loss"
    """Add the KL to the loss, or subtract sum_t k1_t from the reward before the group statistics."""

    correction: Correction = "none"
    """Weight for sampler against trainer: none, the ratio, the ratio cut off at the cap, dropped above the cap."""

    correction_level: CorrectionLevel = "token"
    """That ratio per token, as the product over the answer, or as its geometric mean."""

    correction_cap: float = 2.0
    """Cap of tis and mis."""

    masked_tokens: MaskedTokens = "keep"
    """Tokens that mis drops stay in the denominator, or the weights are made over the kept ones."""

    filter_groups: bool = False
    """Leave groups without reward spread out of the loss and out of its denominator."""

    resample: bool = False
    """With filter_groups: sample on until the batch is full of informative groups, within the budget."""

    truncated: Literal["keep", "mask"] = "keep"
    """Train on answers that used up their budget, or take them out."""

    overlong_buffer: int | None = None
    """Tokens before the budget over which a penalty grows from 0 to -1; 0 = off. Off where not given, except that
    the preset dapo takes a fifth of the budget (the paper's 4,096 of 20,480)."""

    old_logprobs: Literal["recompute", "sampler"] = "recompute"
    """Where pi_old comes from: the trainer's own forward pass, or the sampler's log-probabilities."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The ratio's bounds, (1 - clip, 1 + clip_high)."""
        high = self.clip if self.clip_high is None else self.clip_high
        return 1.0 - self.clip, 1.0 + high

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model has to be loaded."""
        return self.kl_coef > 0

    @property
    def asks_for_old_logprobs(self) -> bool:
        """Whether log pi_old is needed before the first update's own pass, so that a pass is made for it."""
        kl_in_reward = self.needs_reference and self.kl_place == "reward"
        return kl_in_reward or (self.correction == "mis" and self.masked_tokens == "valid")

    def ratio_moves(self, updates_per_step: int) -> bool:
        """Whether an importance ratio of a batch can differ from 1, but for rounding."""
        return updates_per_step > 1 or self.old_logprobs == "sampler"
