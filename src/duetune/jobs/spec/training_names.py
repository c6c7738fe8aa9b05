"""Names of Hugging Face, TRL and PEFT that the spec does not accept, with the reason for each.

``problems`` shows the reason when such a field is used, and the reference lists them all. Accepted
names are in ``training_fields``.
"""

from __future__ import annotations

from typing import Final

_PLANNED = "duetune decides where and on how many GPUs a job runs"
_CHECKPOINTS = "use checkpoint.every, checkpoint.keep and checkpoint.dir"
_OTHER = "the built-in trainer does not support it; use your own command (run)"
_QUANTISED = "write method: qlora, which keeps frozen weights in 4 bits"
_PACKED = "rows are always laid end to end without padding, and never see each other"
_CAUSAL = "models are always trained as causal language models"
_CODE = "code of a model is never run, because it would see the job's secrets"

# Fields that exist in the spec in another place or under another name.
_INSTEAD = {
    "model_name_or_path": "write model at the top of the spec",
    "dataset_name": "write dataset at the top of the spec",
    "use_peft": "write method: lora at the top of the spec",
    "r": "write lora_r",
    "target_modules": "write lora_target_modules",
    "activation_checkpointing": "write gradient_checkpointing",
    "epochs": "write num_train_epochs",
    "num_epochs": "write num_train_epochs",
    "batch_size": "write per_device_train_batch_size",
    "max_seq_length": "write max_length",
    "evaluation_strategy": "write eval_strategy",
    "learning_rate_scheduler": "write lr_scheduler_type",
    "no_cuda": _PLANNED,
    "use_cpu": _PLANNED,
    "resume_from_checkpoint": "a job always resumes from its last checkpoint",
    "output_dir": "results go to the job's own folder",
    "overwrite_output_dir": "results go to the job's own folder",
    "save_steps": _CHECKPOINTS,
    "save_strategy": _CHECKPOINTS,
    "save_total_limit": _CHECKPOINTS,
    "save_only_model": _CHECKPOINTS,
    "save_on_each_node": _CHECKPOINTS,
    "save_safetensors": _CHECKPOINTS,
    "enable_jit_checkpoint": _CHECKPOINTS,
    "local_rank": _PLANNED,
    "fsdp": _PLANNED,
    "fsdp_config": _PLANNED,
    "deepspeed": _PLANNED,
    "ddp_backend": _PLANNED,
    "ddp_broadcast_buffers": _PLANNED,
    "ddp_bucket_cap_mb": _PLANNED,
    "ddp_find_unused_parameters": _PLANNED,
    "ddp_static_graph": _PLANNED,
    "ddp_timeout": _PLANNED,
    "parallelism_config": _PLANNED,
    "accelerator_config": _PLANNED,
    "load_in_8bit": _QUANTISED,
    "modules_to_save": "write lora_modules_to_save",
    "base_model_name_or_path": "write model at the top of the spec",
    "revision": "write model_revision",
    "dtype": "write precision",
    "torch_dtype": "write precision",
    "full_determinism": "write reproducible",
    "trust_remote_code": _CODE,
    "eval_packing": _PACKED,
    "packing_strategy": _PACKED,
    "padding_free": _PACKED,
    "group_by_length": _PACKED,
    "pad_to_multiple_of": _PACKED,
    "task_type": _CAUSAL,
    "lora_task_type": _CAUSAL,
    "per_device_eval_batch_size": "evaluation uses per_device_train_batch_size",
    "hub_token": "do not write secrets into a spec; list HF_TOKEN under secrets",
}

_UNSUPPORTED = """
    activation_checkpointing_kwargs activation_offloading alora_invocation_tokens alpha_pattern
    arrow_config
    auto_find_batch_size auto_mapping average_tokens_across_devices batch_eval_metrics
    bf16_full_eval bias bnb_4bit_quant_storage corda_config dataloader_drop_last
    dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor
    dataset_config dataset_kwargs dataset_num_proc dataset_streaming dataset_test_split
    dataset_train_split debug disable_tqdm do_eval do_predict do_train ensure_weight_tying
    eva_config eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start
    eval_use_gather_object exclude_modules fan_in_fan_out fp16_full_eval fp16_opt_level
    gradient_checkpointing_kwargs greater_is_better half_precision_backend hub_always_push
    hub_revision hub_strategy ignore_bias_buffers ignore_data_skip include_for_metrics
    include_inputs_for_metrics include_num_input_tokens_seen include_tokens_per_second
    inference_mode jit_mode_eval kasa_config label_names label_smoothing_factor
    layer_replication layers_pattern layers_to_transform length_column_name liger_kernel_config
    loftq_config log_level log_level_replica log_on_each_node logging_dir logging_first_step
    logging_nan_inf_filter logging_strategy lora_ga_config lora_target_parameters loss_type
    megatron_config megatron_core model_init_kwargs monteclora_config neftune_noise_alpha
    optim_args optim_target_modules past_index peft_type peft_version
    prediction_loss_only qalora_group_size rank_pattern ray_scope remove_unused_columns
    restore_callback_states_from_checkpoint router_aux_loss_coef runtime_config shuffle_dataset
    skip_memory_metrics target_parameters tf32 torch_compile torch_compile_backend
    torch_compile_mode torch_empty_cache_steps torchdynamo tpu_metrics_debug tpu_num_cores
    trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy
    trainable_token_indices truncation_mode use_bdlora use_cache use_ipex
    use_legacy_prediction_loop use_mps_device use_qalora velora_config
""".split()  # noqa: SIM905 - words are easier to read than a list of them

OWN: Final = frozenset(
    (
        "chat_template",
        "early_stopping_patience",
        "early_stopping_threshold",
        "eval_dataset",
        "eval_fraction",
        "max_tokens_per_microbatch",
        "precision",
        "reproducible",
        "warmup_ratio",
    )
)
"""Fields whose names are duetune's own, or those of Trainer's callbacks and earlier versions."""

UNSUPPORTED: Final = dict.fromkeys(_UNSUPPORTED, _OTHER) | _INSTEAD
