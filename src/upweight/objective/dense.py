"""The padded `[B, T]` functions: thin wrappers that lay the masked-in tokens flat."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from upweight.objective.advantage import gae, group_advantages
from upweight.objective.correction import rejected_tokens
from upweight.objective.errors import UsageError, bad_parameter
from upweight.objective.loss import policy_loss
from upweight.objective.masks import as_mask
from upweight.objective.metrics import Sums, metric_means, quantile
from upweight.objective.rules import out_of_range, wrong_types
from upweight.objective.segments import GroupIds, as_group_ids
from upweight.objective.spec import Objective
from upweight.objective.weights import flat_token_weights

__all__ = ["aggregate_token_loss", "gae", "group_advantages", "grpo_loss", "token_weights"]


def token_weights(
    mask: Shaped[Tensor, "B T"],
    mode: str = "token-mean",
    *,
    max_length: int | None = None,
    group_ids: GroupIds = None,
) -> Float[Tensor, "B T"]:
    """Weight of each token in the loss, `flat_token_weights` over the masked-in slots; 0 elsewhere.

    Args:
        mask: [B, T] bool or 0/1, everything that feeds one optimiser step.
        mode: "token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm" or "group-mean-token-mean".
        max_length: generation budget in tokens, for seq-mean-token-sum-norm.
        group_ids: [B] group of each answer, for group-mean-token-mean.

    Returns:
        [B, T] weights in the mask's dtype where that is floating, else the default dtype.

    Example:
        >>> token_weights(torch.tensor([[1, 1, 1], [1, 0, 0]]), "seq-mean-token-mean")
        tensor([[0.1667, 0.1667, 0.1667],
                [0.5000, 0.0000, 0.0000]])
    """
    kept = as_mask(mask, "token_weights")
    dtype = mask.dtype if mask.is_floating_point() else torch.get_default_dtype()
    seq_id = _seq_id(kept)
    group_id = _group_id(group_ids, kept, seq_id, "token_weights")
    weights = flat_token_weights(seq_id, mode, max_length=max_length, group_id=group_id)
    return torch.zeros(kept.shape, dtype=dtype, device=kept.device).masked_scatter(kept, weights.to(dtype))


def aggregate_token_loss(
    token_loss: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    mode: str = "token-mean",
    *,
    max_length: int | None = None,
    group_ids: GroupIds = None,
) -> Float[Tensor, ""]:
    """sum_t w_t loss_t over the masked-in tokens; what masked slots hold changes nothing.

    Args:
        token_loss: [B, T], differentiable.
        mask, mode, max_length, group_ids: see `token_weights`.

    Example:
        >>> aggregate_token_loss(torch.tensor([[3.0, 1.0, float("nan")]]), torch.tensor([[1, 1, 0]]))
        tensor(2.)
    """
    kept = as_mask(mask, "aggregate_token_loss")
    _check_shapes("aggregate_token_loss", kept, token_loss=token_loss)
    weights = token_weights(kept.double(), mode, max_length=max_length, group_ids=group_ids)
    return (weights[kept].to(token_loss.dtype) * token_loss[kept]).sum()


def grpo_loss(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"] | None,
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    *,
    clip: float = 0.2,
    clip_high: float | None = None,
    ratio_level: str = "token",
    surrogate: str = "clip",
    dual_clip: float | None = None,
    loss_agg: str = "token-mean",
    max_length: int | None = None,
    group_ids: GroupIds = None,
    weights: Float[Tensor, "B T"] | None = None,
    kl_coef: float = 0.0,
    ref_logprobs: Float[Tensor, "B T"] | None = None,
    kl_estimator: str = "k3",
    kl_grad: str = "naive",
    sampler_logprobs: Float[Tensor, "B T"] | None = None,
    correction: str = "none",
    correction_level: str = "token",
    correction_cap: float = 2.0,
    masked_tokens: str = "keep",
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """The policy loss of a padded batch: - sum_t w_t c_t f(rho_t, A_t) + kl_coef sum_t w_t KL_t.

    GRPO is arXiv 2402.03300, equation 3; Dr. GRPO, DAPO, GSPO, CISPO and PPO's clip are other values of the
    keywords. Terms and sources: `clip_surrogate`, `cispo_surrogate`, `sequence_log_ratio`, `flat_token_weights`,
    `kl_estimate`, `correction_terms`.

    `weights` is how a caller micro-batches without changing the result: make them once for the whole step, hand
    each micro-batch its slice, add the losses. They override loss_agg and max_length, and masked_tokens.

    Args:
        logprobs: [B, T] log-probabilities of the sampled tokens, differentiable.
        old_logprobs: [B, T] under the policy before the update; None = `logprobs` detached.
        advantages: [B], or [B, T] (a sequence ratio then takes the GSPO-token form).
        mask: [B, T] bool or 0/1. It selects: a masked slot may hold NaN or inf and changes nothing.
        clip, clip_high: bounds 1 - clip and 1 + clip_high (clip where None).
        ratio_level: "token" or "sequence".
        surrogate: "clip", "cispo" or "none".
        dual_clip: above 1, or None; read by "clip" only.
        loss_agg, max_length, group_ids: see `token_weights`.
        weights: [B, T] slice of `token_weights` over the whole step.
        kl_coef, ref_logprobs, kl_estimator, kl_grad: KL to the reference; off at 0.
        sampler_logprobs, correction, correction_level, correction_cap: see `correction_terms`.
        masked_tokens: "keep": tokens that mis rejects stay in the denominator; "valid": they leave it.

    Returns:
        The loss (0 with a graph where no token is masked in), and metrics: `clipfrac` (with `clipfrac_low`,
        `clipfrac_high`, `clipfrac_dual`), `kl` (0 without a reference), `ratio_mean`, `ratio_p99`, `ratio_max`,
        `ess`, `rejected`, `tokens` (masked-in tokens: 0 says that nothing can be trained), and `mismatch` with
        sampler log-probs.

    Raises:
        UsageError: shapes that do not fit, a choice that does not exist, a needed tensor that is missing.

    Example:
        >>> weights = token_weights(torch.tensor([[1, 1], [1, 0]]))
        >>> logprobs, ones = torch.tensor([[-1.0, -1.0], [-1.0, 0.0]]), torch.tensor([[1, 1], [1, 0]])
        >>> advantages = torch.tensor([1.0, -0.5])
        >>> whole, _ = grpo_loss(logprobs, logprobs, advantages, ones)
        >>> parts = [
        ...     grpo_loss(logprobs[i], logprobs[i], advantages[i], ones[i], weights=weights[i])[0]
        ...     for i in (slice(0, 1), slice(1, 2))
        ... ]
        >>> bool(torch.isclose(sum(parts), whole))
        True
    """
    kept = as_mask(mask, "grpo_loss")
    _check_shapes("grpo_loss", kept, logprobs=logprobs, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs)
    _check_shapes("grpo_loss", kept, sampler_logprobs=sampler_logprobs, weights=weights)
    _check_advantages(advantages, kept)
    objective = Objective(
        clip=clip,
        clip_high=clip_high,
        ratio_level=ratio_level,  # type: ignore[arg-type]
        surrogate=surrogate,  # type: ignore[arg-type]
        dual_clip=dual_clip,
        kl_coef=kl_coef,
        kl_estimator=kl_estimator,  # type: ignore[arg-type]
        kl_grad=kl_grad,  # type: ignore[arg-type]
        correction=correction,  # type: ignore[arg-type]
        correction_level=correction_level,  # type: ignore[arg-type]
        correction_cap=correction_cap,
        masked_tokens=masked_tokens,  # type: ignore[arg-type]
        loss_agg=loss_agg,  # type: ignore[arg-type]
    )
    _check_values(objective)
    seq_id = _seq_id(kept)
    flat_logprobs, old, sampler = logprobs[kept], _pick(old_logprobs, kept), _pick(sampler_logprobs, kept)
    if weights is None:
        known_old = flat_logprobs.detach() if old is None else old
        group_id = _group_id(group_ids, kept, seq_id, "grpo_loss")
        flat_weights = _flat_weights(objective, known_old, sampler, seq_id, group_id, max_length)
    else:
        flat_weights = weights[kept]
    terms = policy_loss(
        objective,
        logprobs=flat_logprobs,
        old_logprobs=old,
        advantages=advantages[seq_id] if advantages.ndim == 1 else advantages[kept],
        weights=flat_weights,
        seq_id=seq_id,
        ref_logprobs=_pick(ref_logprobs, kept),
        sampler_logprobs=sampler,
        per_token_advantages=advantages.ndim == 2,
    )
    return terms.loss, _finish_metrics(terms.metrics, terms.ratio)


def _flat_weights(
    objective: Objective,
    old_logprobs: Tensor,
    sampler_logprobs: Tensor | None,
    seq_id: Tensor,
    group_id: Tensor | None,
    max_length: int | None,
) -> Tensor:
    """[N] weights, over the tokens that a correction leaves where masked_tokens is "valid"."""
    keep = None
    if objective.masked_tokens == "valid":
        keep = ~rejected_tokens(objective, old_logprobs, sampler_logprobs, seq_id)
    return flat_token_weights(seq_id, objective.loss_agg, max_length=max_length, group_id=group_id, keep=keep)


def _finish_metrics(sums: Sums, ratio: Tensor) -> dict[str, float]:
    metrics = {"kl": 0.0, **metric_means(sums)}
    metrics["ratio_p99"] = quantile(ratio, 0.99)
    metrics["ratio_max"] = quantile(ratio, 1.0)
    metrics["tokens"] = float(ratio.numel())
    return metrics


def _seq_id(kept: Tensor) -> Tensor:
    """[N] row of each masked-in slot, in reading order."""
    return kept.nonzero()[:, 0]


def _group_id(group_ids: GroupIds, kept: Tensor, seq_id: Tensor, owner: str) -> Tensor | None:
    """[N] group of each masked-in slot."""
    return None if group_ids is None else as_group_ids(group_ids, kept.shape[0], kept.device, owner)[seq_id]


def _pick(tensor: Tensor | None, kept: Tensor) -> Tensor | None:
    return None if tensor is None else tensor[kept]


def _check_shapes(owner: str, kept: Tensor, **tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != kept.shape:
            raise bad_parameter(name, owner, f"of the mask's shape {tuple(kept.shape)}", tuple(tensor.shape))


def _check_advantages(advantages: Tensor, kept: Tensor) -> None:
    if advantages.shape not in (kept.shape[:1], kept.shape):
        must = f"of shape {tuple(kept.shape[:1])} or {tuple(kept.shape)}"
        raise bad_parameter("advantages", "grpo_loss", must, tuple(advantages.shape))


def _check_values(objective: Objective) -> None:
    problems = wrong_types(objective, "grpo_loss") or out_of_range(objective, "grpo_loss")
    if problems:
        raise UsageError(problems[0])
