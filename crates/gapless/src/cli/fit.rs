//! The flags of `gapless fit`.

use clap::{Args as ClapArgs, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless fit llama-3-8b                                       training, batch 1, bf16, AdamW: does an H200 hold it?
  gapless fit llama-3-8b --batch 4 --seq 4096 --gpu a100-80    and if not, the cheapest plans that fit
  gapless fit ./my-model --precision amp-bf16 --max-batch      the largest batch, without trial runs
  gapless fit qwen3-32b --infer --gpu l40s --quantize int4 --kv-tokens 32768
  gapless fit gpt-oss-20b --infer --engine vllm --gpu h100     weights, blocks of the cache, what is left
  gapless fit llama-3-8b --lora r=16,base=nf4 --gpu 4090       QLoRA on 24 GiB; --lora r=16 is LoRA
  gapless fit llama-3-70b --gpus 8 --nodes 2 --gpu h100        a plan over 16 GPUs
  gapless fit gpt2 --gpu 4090 --batch 64 --emit torch --out plan/
  gapless fit llama-3-8b --why                                 every number with its equation, inputs and source
  gapless fit llama-3-8b --compare optimizer=adamw optimizer=adamw8bit,batch=2
  gapless fit --compare llama-3-8b qwen3-8b
  gapless fit --list qwen                                      built-in models with qwen in their name
  gapless fit resnet50 --image 224 --batch 256 --format html -o step.html
  gapless fit --run train.py -- --batch 8                      torch itself runs the script, without a GPU
  gapless fit ./any-model --run --batch 4 --gpu h100           the same for any configuration: `gapless estimate`

MODEL is a Hugging Face config.json or its folder, a .safetensors, .gguf, .pt2 or .onnx file, or a built-in name (`--list` prints them).
What is not given is chosen and said: training, one GPU (h200), batch 1, 2048 tokens or what the model can take, bf16, AdamW, no
checkpointing. A step takes batch x grad-accum sequences on each data-parallel GPU.

Exit code: 0 what was asked fits, 1 it does not or only another recipe does, 2 the question is wrong.")]
pub(crate) struct FitArgs {
    /// What is to run: a file, a folder, or a built-in name
    pub(crate) model: Option<String>,

    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Run MODEL, a script or a configuration, on torch itself, as `gapless estimate` does
    #[arg(long, conflicts_with_all = ["list", "gpus_list"])]
    pub(crate) run: bool,

    /// Look for cheaper plans even where it fits
    #[arg(long)]
    pub(crate) optimize: bool,

    /// Find the largest batch that fits
    #[arg(long)]
    pub(crate) max_batch: bool,

    /// How many plans to list
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub(crate) top: usize,

    /// Print for each number its equation, inputs and source
    #[arg(long)]
    pub(crate) why: bool,

    /// Explain the difference between two settings (batch=8,precision=fp32) or two models
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["emit", "max_batch", "html"])]
    pub(crate) compare: Option<Vec<String>>,

    /// Write the configuration or the lines of code that realise the plan
    #[arg(long, value_enum, value_name = "TARGET")]
    pub(crate) emit: Option<EmitTarget>,

    /// The folder for what --emit writes [default: standard output]
    #[arg(long, value_name = "DIR", requires = "emit")]
    pub(crate) out: Option<PathBuf>,

    /// Also write the page of --format html to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// List the built-in models whose name contains FILTER, with parameters and bytes of 16-bit weights
    #[arg(long, value_name = "FILTER", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["model", "emit", "compare", "gpus_list"])]
    pub(crate) list: Option<String>,

    /// List the known GPUs with their memory and what a verdict lets a process take of it
    #[arg(long, conflicts_with_all = ["model", "emit", "compare"])]
    pub(crate) gpus_list: bool,

    #[arg(long, value_enum, default_value_t = FitFormat::Text)]
    pub(crate) format: FitFormat,

    /// Where to write it [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// With --run: the script's own arguments, after `--`
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<OsString>,
}

/// What is run and where. `--compare` changes any of it by name.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct Settings {
    /// Forward, backward, optimizer [default]
    #[arg(long, conflicts_with = "infer", help_heading = "The run")]
    pub(crate) train: bool,

    /// One forward pass with a key-value cache
    #[arg(long, help_heading = "The run")]
    pub(crate) infer: bool,

    /// Sequences, or pictures, of one forward pass on one GPU [default: 1]
    #[arg(long, value_name = "N", help_heading = "The run")]
    pub(crate) batch: Option<u64>,

    /// Tokens of a sequence [default: 2048, or the model's positions where they are fewer]
    #[arg(long, value_name = "TOKENS", help_heading = "The run")]
    pub(crate) seq: Option<u64>,

    /// Pixels a side, for models of pictures [default: 224]
    #[arg(long, value_name = "PIXELS", help_heading = "The run")]
    pub(crate) image: Option<u64>,

    /// What weights are kept in and products computed in [default: bf16]
    #[arg(long, value_enum, value_name = "PRECISION", help_heading = "The run")]
    pub(crate) precision: Option<PrecisionArg>,

    /// What updates the weights [default: adamw]
    #[arg(long, value_enum, value_name = "OPTIMIZER", help_heading = "The run")]
    pub(crate) optimizer: Option<OptimizerArg>,

    /// Gradient checkpointing (activation recomputation): what is run again in backward instead of kept; auto: as few
    /// blocks as fit [default: none]
    #[arg(
        long,
        visible_alias = "gradient-checkpointing",
        alias = "activation-checkpointing",
        value_enum,
        value_name = "WHAT",
        num_args = 0..=1,
        default_missing_value = "full",
        help_heading = "The run"
    )]
    pub(crate) checkpointing: Option<CheckpointingArg>,

    /// How attention is computed [default: the model's own, else sdpa]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "The run")]
    pub(crate) attention: Option<AttentionArg>,

    /// LoRA: train low-rank adapters on a frozen model: r=16; base=nf4 is QLoRA; targets=default or q_proj+v_proj;
    /// dtype=bf16, dora, dropout=0.05, save=lm_head [default: targets=all,dtype=fp32, the base as it is stored]
    #[arg(long, value_name = "r=N,...", help_heading = "The run")]
    pub(crate) lora: Option<String>,

    /// Gradient accumulation: forward and backward passes before each step of the optimizer [default: 1]
    #[arg(
        long,
        alias = "gradient-accumulation",
        alias = "gradient-accumulation-steps",
        value_name = "N",
        help_heading = "The run"
    )]
    pub(crate) grad_accum: Option<u64>,

    /// Tokens that the key-value cache holds, all sequences together [default: batch x seq]
    #[arg(long, value_name = "TOKENS", help_heading = "The run")]
    pub(crate) kv_tokens: Option<u64>,

    /// Who serves: with vllm or sglang, weights, blocks of the paged cache and what is left
    #[arg(long, value_enum, value_name = "ENGINE", help_heading = "The run")]
    pub(crate) engine: Option<EngineArg>,

    /// Share of the device that the engine takes: gpu_memory_utilization, mem_fraction_static [default: the engine's]
    #[arg(long, value_name = "SHARE", help_heading = "The run")]
    pub(crate) utilization: Option<f64>,

    /// Weights stream from the host, as gapless.stream runs them: the memory, and the least time of a pass, with SIZE
    /// of them on the card [default: as much as it has room for]
    #[arg(long, value_name = "SIZE", num_args = 0..=1, default_missing_value = "", help_heading = "The run")]
    pub(crate) stream: Option<String>,

    /// Format of the weights, when serving [default: the checkpoint's]
    #[arg(long, value_enum, value_name = "FORMAT", help_heading = "The run")]
    pub(crate) quantize: Option<QuantizeArg>,

    /// Half of the weights pruned in the pattern 2:4, when serving
    #[arg(long, value_name = "PATTERN", value_parser = ["2:4"], help_heading = "The run")]
    pub(crate) sparsity: Option<String>,

    /// The device: h200, h100, a100-80, a100-40, l40s, 4090, t4, mi300x, ... [default: h200]
    #[arg(long, value_name = "NAME", help_heading = "The hardware")]
    pub(crate) gpu: Option<String>,

    /// Memory of the device, instead of the named one's: 24GiB or 24G (2^30 each), or 24GB (10^9 each)
    #[arg(long, value_name = "SIZE", help_heading = "The hardware")]
    pub(crate) memory: Option<String>,

    /// Devices of a node [default: 1, or as many as the degrees need]
    #[arg(long, value_name = "N", help_heading = "The hardware")]
    pub(crate) gpus: Option<u64>,

    /// Nodes [default: 1]
    #[arg(long, value_name = "M", help_heading = "The hardware")]
    pub(crate) nodes: Option<u64>,

    /// Memory of the host for each GPU, for offloading [default: 128GiB]
    #[arg(long, value_name = "SIZE", help_heading = "The hardware")]
    pub(crate) host_memory: Option<String>,

    /// Data-parallel degree
    #[arg(long, value_name = "N", help_heading = "Over several GPUs")]
    pub(crate) dp: Option<u64>,

    /// Tensor-parallel degree
    #[arg(long, value_name = "N", help_heading = "Over several GPUs")]
    pub(crate) tp: Option<u64>,

    /// Pipeline-parallel degree
    #[arg(long, value_name = "N", help_heading = "Over several GPUs")]
    pub(crate) pp: Option<u64>,

    /// Context-parallel degree
    #[arg(long, value_name = "N", help_heading = "Over several GPUs")]
    pub(crate) cp: Option<u64>,

    /// Expert-parallel degree
    #[arg(long, value_name = "N", help_heading = "Over several GPUs")]
    pub(crate) ep: Option<u64>,

    /// What data-parallel ranks share: ZeRO's stage, or fsdp
    #[arg(long, value_enum, value_name = "STAGE", help_heading = "Over several GPUs")]
    pub(crate) zero: Option<ZeroArg>,

    /// CPU offload: what lives on the host while it is not used: optimizer, params, activations
    #[arg(
        long,
        visible_alias = "cpu-offload",
        value_enum,
        value_delimiter = ',',
        value_name = "WHAT",
        help_heading = "Over several GPUs"
    )]
    pub(crate) offload: Option<Vec<OffloadArg>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionArg {
    #[value(alias = "float32", alias = "32")]
    Fp32,
    #[value(alias = "bfloat16")]
    Bf16,
    #[value(alias = "float16", alias = "half", alias = "16")]
    Fp16,
    /// fp32 weights under torch.autocast
    #[value(alias = "bf16-mixed")]
    AmpBf16,
    #[value(alias = "fp16-mixed", alias = "16-mixed")]
    AmpFp16,
    /// 16-bit weights and gradients, fp32 master copies and states (ZeRO, DeepSpeed)
    Mixed,
    /// The same with fp32 gradients (Megatron)
    MixedFp32Grad,
    /// Weights in 8 bits, when serving
    Fp8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerArg {
    #[value(alias = "adam")]
    Adamw,
    AdamwFused,
    #[value(alias = "adamw-8bit", alias = "adam8bit")]
    Adamw8bit,
    /// bitsandbytes' AdamW whose large states the driver moves between card and host
    #[value(alias = "paged-adamw-32bit")]
    PagedAdamw,
    #[value(alias = "paged-adamw-8bit")]
    PagedAdamw8bit,
    Sgd,
    SgdMomentum,
    Adafactor,
    Rmsprop,
    Adagrad,
    Lion,
    Muon,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckpointingArg {
    #[value(alias = "off", alias = "no", alias = "false")]
    None,
    #[value(alias = "on", alias = "yes", alias = "true", alias = "gradient")]
    Full,
    Selective,
    Auto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttentionArg {
    Sdpa,
    Eager,
    Flash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantizeArg {
    /// 16 bits, whatever the checkpoint has
    None,
    Int8,
    Int4,
    Nf4,
    Fp8,
    Mxfp4,
    Nvfp4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    Vllm,
    Sglang,
    /// generate() of transformers: logits of the last token alone
    Transformers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ZeroArg {
    #[value(name = "0")]
    Zero0,
    #[value(name = "1")]
    Zero1,
    #[value(name = "2")]
    Zero2,
    #[value(name = "3")]
    Zero3,
    Fsdp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OffloadArg {
    #[value(alias = "optimizer-state", alias = "optimizer-states", alias = "optim")]
    Optimizer,
    #[value(alias = "parameters", alias = "param", alias = "weights")]
    Params,
    Activations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FitFormat {
    Text,
    Json,
    /// The answer as a page, with the step's memory over time
    Html,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EmitTarget {
    Torch,
    Fsdp,
    Deepspeed,
    Accelerate,
    Vllm,
}
