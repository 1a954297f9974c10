"""Every field of TRL's GRPOConfig (release 1.16.0, over transformers 5), and what becomes of it. Imports no torch.

A field is in one of five places: the objective's are `upweight.objective.dialects.trl.SETTINGS`; `MAPPED` ones become
fields of `TrainArgs`, and `HANDED_ON` ones arguments of `Trainer`; `NOT_MAPPED` ones are reported where they differ
from TRL's default; `NO_MEANING` ones decide nothing that a run here has.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapped:
    """A field that `TrainArgs.from_trl` reads."""

    kind: object
    """What it holds: an annotation that `upweight.objective.fields.must_be` reads."""

    default: object
    """TRL's own default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotMapped:
    """A field that changes what TRL does, and has nothing here to stand for it."""

    defaults: tuple[object, ...]
    """Values that change nothing: TRL's own default, and other spellings of it."""

    here: str
    """What happens here instead, as the rest of a sentence."""


MAPPED: Mapping[str, Mapped] = {
    "output_dir": Mapped(kind=str | None, default=None),
    "per_device_train_batch_size": Mapped(kind=int, default=8),
    "gradient_accumulation_steps": Mapped(kind=int, default=1),
    "steps_per_generation": Mapped(kind=int | None, default=None),
    "generation_batch_size": Mapped(kind=int | None, default=None),
    "num_generations": Mapped(kind=int, default=8),
    "num_iterations": Mapped(kind=int, default=1),
    "max_steps": Mapped(kind=int, default=-1),
    "num_train_epochs": Mapped(kind=float, default=3.0),
    "max_completion_length": Mapped(kind=int | None, default=512),
    "temperature": Mapped(kind=float, default=1.0),
    "top_p": Mapped(kind=float, default=1.0),
    "top_k": Mapped(kind=int | None, default=0),
    "learning_rate": Mapped(kind=float, default=1e-6),
    "lr_scheduler_type": Mapped(kind=str, default="linear"),
    "warmup_steps": Mapped(kind=float, default=0),
    "warmup_ratio": Mapped(kind=float | None, default=None),  # transformers 4; in 5 a warmup_steps below 1 is one
    "weight_decay": Mapped(kind=float, default=0.0),
    "max_grad_norm": Mapped(kind=float, default=1.0),
    "seed": Mapped(kind=int, default=42),
    "save_strategy": Mapped(kind=str, default="steps"),
    "save_steps": Mapped(kind=float, default=500),
    "save_total_limit": Mapped(kind=int | None, default=None),
    "eval_strategy": Mapped(kind=str, default="no"),
    "eval_steps": Mapped(kind=float | None, default=None),
    "logging_steps": Mapped(kind=float, default=10),  # what eval_steps is where it is not given
    "bf16": Mapped(kind=bool | None, default=None),
    "fp16": Mapped(kind=bool, default=False),
    "use_cpu": Mapped(kind=bool, default=False),
}

HANDED_ON = ("reward_weights",)
"""Fields that `Trainer` takes beside its configuration; `read_trl` returns them by name."""

_NONE = (None,)
_OFF = (False, None)
_ADAMW = ("adamw_torch_fused", "adamw_torch")

NOT_MAPPED: Mapping[str, NotMapped] = {
    "model_init_kwargs": NotMapped(defaults=(None, {}), here="the model is loaded as --model loads it"),
    "trust_remote_code": NotMapped(defaults=_OFF, here="code that comes with a model is not run"),
    "router_aux_loss_coef": NotMapped(defaults=(None, 0.0), here="no load-balancing loss is added"),
    "cast_lm_head_to_fp32": NotMapped(
        defaults=_OFF, here="the head is computed in the dtype of the weights, its log-softmax in float32"
    ),
    "remove_unused_columns": NotMapped(defaults=_OFF, here="every column reaches the reward functions"),
    "num_generations_eval": NotMapped(
        defaults=_NONE, here="a held-out evaluation answers each prompt once, the most likely way"
    ),
    "shuffle_dataset": NotMapped(defaults=(True,), here="rows come in a fresh seeded order every epoch"),
    "min_p": NotMapped(defaults=(None, 0.0), here="answers are sampled without it"),
    "generation_kwargs": NotMapped(defaults=(None, {}), here="answers are sampled without them"),
    "chat_template_kwargs": NotMapped(defaults=(None, {}), here="the chat template is used as it is"),
    "repetition_penalty": NotMapped(defaults=(1.0,), here="answers are sampled without it"),
    "use_vllm": NotMapped(defaults=(False,), here="the built-in engine samples, with the trainer's own weights"),
    "vllm_structured_outputs_regex": NotMapped(defaults=_NONE, here="answers are not held to a pattern"),
    "max_tool_calling_iterations": NotMapped(defaults=_NONE, here="an answer is a single turn without tools"),
    "log_completions_hub_repo": NotMapped(defaults=_NONE, here="answers are in RUN/rollouts and are not uploaded"),
    "optim": NotMapped(defaults=_ADAMW, here="the optimiser is AdamW"),
    "optim_args": NotMapped(defaults=(None, ""), here="AdamW has betas 0.9 and 0.999 and epsilon 1e-8"),
    "optim_target_modules": NotMapped(defaults=_NONE, here="AdamW updates every parameter"),
    "adam_beta1": NotMapped(defaults=(0.9,), here="AdamW has beta1 0.9"),
    "adam_beta2": NotMapped(defaults=(0.999,), here="AdamW has beta2 0.999"),
    "adam_epsilon": NotMapped(defaults=(1e-8,), here="AdamW has epsilon 1e-8"),
    "lr_scheduler_kwargs": NotMapped(defaults=(None, {}), here="the schedule takes no parameters"),
    "neftune_noise_alpha": NotMapped(defaults=_NONE, here="no noise is added to embeddings"),
    "tf32": NotMapped(defaults=_NONE, here="torch's own setting stays"),
    "eval_delay": NotMapped(defaults=(0, None), here="the first evaluation is before the first step"),
    "load_best_model_at_end": NotMapped(defaults=_OFF, here="the last checkpoint is the result"),
    "push_to_hub": NotMapped(defaults=_OFF, here="nothing is uploaded"),
    "report_to": NotMapped(
        defaults=("none", None, [], ["none"]), here="metrics go to RUN/metrics.jsonl, and to no tracker"
    ),
    "resume_from_checkpoint": NotMapped(defaults=_OFF, here="it is an argument of train(), or --resume"),
    "data_seed": NotMapped(defaults=_NONE, here="one seed is that of everything random"),
    "fsdp": NotMapped(defaults=(None, "", [], False), here="--shard full divides a model over processes"),
    "deepspeed": NotMapped(defaults=_NONE, here="--shard full divides a model over processes"),
    "parallelism_config": NotMapped(defaults=_NONE, here="processes divide answers, never a sequence or a product"),
}

NO_MEANING: Mapping[str, str] = {
    "Memory and speed; passes are cut by micro_batch_tokens, and the cut changes no result": """
        per_device_eval_batch_size activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing
        gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode use_liger_kernel
        liger_kernel_config use_cache torch_empty_cache_steps auto_find_batch_size pad_to_multiple_of
        cache_implementation use_transformers_continuous_batching transformers_continuous_batching_config
        use_transformers_paged eval_accumulation_steps skip_memory_metrics bf16_full_eval fp16_full_eval""",
    "How data is loaded; rows are read once and kept": """
        dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
        dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order label_names
        train_sampling_strategy length_column_name ignore_data_skip""",
    "How several processes work together; here torchrun starts them, and no flag counts per process": """
        average_tokens_across_devices accelerator_config fsdp_config ddp_find_unused_parameters ddp_bucket_cap_mb
        ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout local_rank save_on_each_node log_on_each_node
        log_level_replica ds3_gather_for_generation""",
    "What is logged, and where; every step is a row of RUN/metrics.jsonl, and its answers are in RUN/rollouts": """
        logging_strategy logging_first_step logging_nan_inf_filter include_num_input_tokens_seen log_level disable_tqdm
        run_name project trackio_space_id trackio_bucket_id trackio_static_space_id log_completions log_multimodal
        num_completions_to_print log_unique_prompts debug""",
    "Evaluation; here it is greedy accuracy before, after and every eval_every steps": """
        prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object include_for_metrics
        batch_eval_metrics do_train do_eval do_predict""",
    "Goes with a setting that is reported by itself": """
        hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision metric_for_best_model
        greater_is_better vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host
        vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length
        vllm_tensor_parallel_size ref_model_mixup_alpha ref_model_sync_steps entropy_coef_min entropy_coef_max
        entropy_coef_delta entropy_target sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos
        vespo_k_neg vespo_lambda_neg""",
    "Holds here anyway, or is not read by GRPOTrainer": """
        disable_dropout full_determinism label_smoothing_factor save_only_model enable_jit_checkpoint
        restore_callback_states_from_checkpoint""",
}
"""Why they decide nothing here -> their names."""

WITHOUT_MEANING = frozenset(name for names in NO_MEANING.values() for name in names.split())
"""All of those names."""
