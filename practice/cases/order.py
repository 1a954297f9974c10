"""The exercises in the order in which they build on each other."""

ORDER = (
    "group_advantages",
    "leave_one_out",
    "weight_table",
    "scaled_losses",
    "clip_higher",
    "clip_surrogate",
    "dual_clip",
    "cispo",
    "sequence_ratio",
    "kl_estimators",
    "expected_gradients",
    "correction_weights",
    "masked_loss",
    "gae",
    "fill_batch",
    "overlong_penalty",
    "pass_at_k",
    "last_boxed",
)
