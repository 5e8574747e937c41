//! From flags to a question: what is not given is chosen, what contradicts itself is refused, and what was chosen is kept as a note.

use crate::cli::fit::{
    AttentionArg, CheckpointingArg, OffloadArg, OptimizerArg, PrecisionArg, QuantizeArg, Settings, ZeroArg,
};
use crate::failure::Failure;
use anyhow::Result;
use gapless_fit::eager::{self, Checkpointing, LoraTargets, Mode, Run};
use gapless_fit::formulas::sharding::Sharding;
use gapless_fit::formulas::states::{Optimizer, Precision};
use gapless_fit::formulas::weights::Format;
use gapless_fit::hardware::{self, Cluster, Gpu};
use gapless_fit::model::{Architecture, Attention, DecoderStyle, Model, Vision};
use gapless_fit::read;
use gapless_fit::search::space::{Lora, Offload};
use gapless_trace::Bytes;

/// Tokens where nothing is said.
const USUAL_LENGTH: u64 = 2048;
const USUAL_GPU: &str = "h200";

/// A model and all that is set.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// As it was asked for.
    pub(super) path: String,
    pub(super) model: Model,
    pub(super) architecture: Architecture,
    /// What a simulation runs. Its checkpointing is `None` where `checkpointing` says more.
    pub(super) run: Run,
    pub(super) checkpointing: CheckpointingArg,
    /// In the closed forms' words, for what a simulation does not cover.
    pub(super) precision: Precision,
    pub(super) optimizer: Optimizer,
    pub(super) lora: Option<Lora>,
    pub(super) format: Format,
    pub(super) sparse: bool,
    pub(super) kv_tokens: Option<u64>,
    pub(super) cluster: Cluster,
    pub(super) gpu_name: String,
    pub(super) degrees: Degrees,
    pub(super) offload: Option<Offload>,
    pub(super) zero: Option<Sharding>,
    /// What was given rather than chosen: a search leaves it alone.
    pub(super) given: Given,
    pub(super) notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Degrees {
    pub(super) data: Option<u64>,
    pub(super) tensor: Option<u64>,
    pub(super) pipeline: Option<u64>,
    pub(super) context: Option<u64>,
    pub(super) expert: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given {
    pub(super) optimizer: bool,
    pub(super) checkpointing: bool,
    pub(super) accumulation: bool,
}

impl Question {
    pub(super) fn read(path: &str, settings: &Settings) -> Result<Question> {
        let options = read::Options { batch: settings.batch };
        let model = read::open_with(path, &options).map_err(|error| {
            Failure::new(
                error.to_string(),
                "`gapless fit --help` shows what a MODEL can be, `gapless fit --list` the built-in ones",
            )
        })?;
        let Some(architecture) = model.architecture.clone() else { return Err(weights_alone(path, &model)) };
        let mut notes = model.notes.clone();
        let mode = if settings.infer { Mode::Infer } else { Mode::Train };
        for (flag, value) in [
            ("--batch", settings.batch),
            ("--seq", settings.seq),
            ("--image", settings.image),
            ("--grad-accum", settings.grad_accum),
            ("--kv-tokens", settings.kv_tokens),
            ("--gpus", settings.gpus),
            ("--nodes", settings.nodes),
            ("--dp", settings.dp),
            ("--tp", settings.tp),
            ("--pp", settings.pp),
            ("--cp", settings.cp),
            ("--ep", settings.ep),
        ] {
            if value == Some(0) {
                return Err(Failure::new(
                    format!("{flag} 0 runs nothing"),
                    "give 1 or more, or leave it out",
                )
                .into());
            }
            if value.is_some_and(|value| value > 1 << 40) {
                return Err(Failure::new(format!("{flag} is more than 2^40"), "check the number").into());
            }
        }
        contradictions(settings, mode)?;
        if matches!(architecture, Architecture::Graph(_)) {
            graph_contradictions(settings)?;
        }
        let length = length(settings, &architecture, &mut notes)?;
        let (gpu, gpu_name) = device(settings)?;
        let precision = settings.precision.unwrap_or(PrecisionArg::Bf16);
        let (lora, base, targets) = lora(settings.lora.as_deref())?;
        let attention = settings.attention.map(|attention| match attention {
            AttentionArg::Sdpa => Attention::Sdpa,
            AttentionArg::Eager => Attention::Eager,
            AttentionArg::Flash => Attention::Flash,
        });
        let checkpointing = settings.checkpointing.unwrap_or(CheckpointingArg::None);
        if matches!(architecture, Architecture::Vision(Vision::Vgg { .. }))
            && checkpointing != CheckpointingArg::None
        {
            return Err(Failure::new(
                "the layers of VGG form no blocks that could be recomputed",
                "leave out --checkpointing; a smaller --batch with more --grad-accum takes less",
            )
            .into());
        }
        let batch = settings.batch.unwrap_or(1);
        let run = Run {
            mode,
            batch,
            length,
            precision: simulated(precision),
            optimizer: stepped(settings.optimizer.unwrap_or(OptimizerArg::Adamw)),
            checkpointing: match checkpointing {
                CheckpointingArg::Full => Checkpointing::All,
                _ => Checkpointing::None,
            },
            attention,
            lora: lora.map(|lora| eager::Lora { rank: lora.rank, targets }),
            accumulation: settings.grad_accum.unwrap_or(1),
            steps: 3,
            note_ops: false,
        };
        let scores = run.attention(own_attention(&architecture)) == Attention::Eager;
        if checkpointing == CheckpointingArg::Selective && !scores {
            notes.push(
                "selective checkpointing recomputes attention scores, and with sdpa or flash there are none: nothing is recomputed".to_owned(),
            );
        }
        let format = match (settings.quantize, precision) {
            (Some(QuantizeArg::Int8), _) => Format::Int8,
            (Some(QuantizeArg::Int4), _) => Format::Int4(128),
            (Some(QuantizeArg::Nf4), _) => Format::Nf4,
            (Some(QuantizeArg::Fp8), _) | (None, PrecisionArg::Fp8) => Format::Fp8,
            (None, PrecisionArg::Fp32) => Format::F32,
            _ => base,
        };
        let degrees = Degrees {
            data: settings.dp,
            tensor: settings.tp,
            pipeline: settings.pp,
            context: settings.cp,
            expert: settings.ep,
        };
        let product: u64 =
            [settings.dp, settings.tp, settings.pp, settings.cp].iter().map(|d| d.unwrap_or(1)).product();
        let nodes = settings.nodes.unwrap_or(1);
        let per_node = match settings.gpus {
            Some(gpus) => gpus,
            None if product > 1 => product.div_ceil(nodes),
            // An expert-parallel group lies within the data-parallel one.
            None => settings.ep.unwrap_or(1),
        };
        let gpus = per_node * nodes;
        if !gpus.is_multiple_of(product) || settings.dp.is_some() && product != gpus {
            return Err(Failure::new(
                format!("the degrees multiply to {product}, which does not divide {gpus} GPUs evenly"),
                "dp x tp x pp x cp is the number of GPUs: change a degree, --gpus or --nodes",
            )
            .into());
        }
        if gpus == 1 && settings.zero.is_some_and(|zero| zero != ZeroArg::Zero0) {
            let what = "--zero shares states between GPUs, and there is one";
            return Err(Failure::new(
                what,
                "add --gpus, or leave it out; --offload moves states to the host",
            )
            .into());
        }
        let mut cluster = Cluster::new(gpu, per_node, nodes);
        if let Some(text) = &settings.host_memory {
            cluster.host_memory = bytes("--host-memory", text)?.0;
        }
        let offload = settings.offload.as_ref().map(|list| Offload {
            optimizer: list.contains(&OffloadArg::Optimizer),
            parameters: list.contains(&OffloadArg::Params),
            activations: list.contains(&OffloadArg::Activations),
        });
        Ok(Question {
            path: path.to_owned(),
            model,
            architecture,
            run,
            checkpointing,
            precision: closed(precision),
            optimizer: closed_optimizer(settings.optimizer.unwrap_or(OptimizerArg::Adamw)),
            lora,
            format,
            sparse: settings.sparsity.is_some(),
            kv_tokens: settings.kv_tokens,
            cluster,
            gpu_name,
            degrees,
            offload,
            zero: settings.zero.map(sharding),
            given: Given {
                optimizer: settings.optimizer.is_some(),
                checkpointing: settings.checkpointing.is_some_and(|c| c != CheckpointingArg::Auto),
                accumulation: settings.grad_accum.is_some() && settings.batch.is_some(),
            },
            notes,
        })
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.cluster.gpu
    }

    pub(super) fn memory(&self) -> Bytes {
        Bytes(self.cluster.gpu.memory())
    }

    pub(super) fn trains(&self) -> bool {
        self.run.mode == Mode::Train
    }

    /// Whether one simulated GPU is the whole answer.
    pub(super) fn is_simulated(&self) -> bool {
        let known = matches!(
            self.precision,
            Precision::Fp32 | Precision::Bf16 | Precision::Fp16 | Precision::AmpBf16
        );
        let stays = self.offload.is_none_or(|o| o == Offload::default());
        let selective = self.checkpointing == CheckpointingArg::Selective
            && self.run.attention(own_attention(&self.architecture)) == Attention::Eager;
        self.cluster.gpus() == 1 && known && stays && !selective
    }

    /// Whether the user laid out the GPUs, rather than only counted them.
    pub(super) fn is_laid_out(&self) -> bool {
        let d = &self.degrees;
        let any = [d.data, d.tensor, d.pipeline, d.context, d.expert].iter().any(Option::is_some);
        any || self.zero.is_some() || self.offload.is_some() || self.cluster.gpus() == 1
    }

    pub(super) fn is_picture(&self) -> bool {
        matches!(self.architecture, Architecture::Vision(_))
    }

    pub(super) fn is_graph(&self) -> bool {
        matches!(self.architecture, Architecture::Graph(_))
    }

    /// The run in one line.
    pub(super) fn headline(&self) -> String {
        if let Architecture::Graph(graph) = &self.architecture {
            let pass = match (self.trains(), graph.joint) {
                (false, _) => "infer · one forward pass",
                (true, true) => "train · forward and backward as exported",
                (true, false) => {
                    "train · forward, and a backward pass that keeps what each kind of operator reads"
                }
            };
            return format!("{pass} · {} operators, shapes as exported", graph.nodes.len());
        }
        let run = &self.run;
        let unit = if self.is_picture() { "pixels" } else { "tokens" };
        let mut words = vec![
            if self.trains() { "train" } else { "infer" }.to_owned(),
            format!("batch {} x {} {unit}", run.batch, run.length),
            if self.trains() || matches!(self.format, Format::Half) {
                self.precision.name()
            } else {
                self.format.name()
            }
            .to_owned(),
        ];
        if self.trains() {
            words.push(self.optimizer.name().to_owned());
            words.push(
                match self.checkpointing {
                    CheckpointingArg::None => "no checkpointing",
                    CheckpointingArg::Full => "full checkpointing",
                    CheckpointingArg::Selective => "selective checkpointing",
                    CheckpointingArg::Auto => "checkpointing as needed",
                }
                .to_owned(),
            );
            if run.accumulation > 1 {
                words.push(format!("{} passes a step", run.accumulation));
            }
            if let Some(lora) = self.lora {
                words.push(format!("adapters of rank {} on {} weights", lora.rank, self.format.name()));
            }
        }
        words.push(
            match run.attention(own_attention(&self.architecture)) {
                Attention::Sdpa => "sdpa",
                Attention::Eager => "eager attention",
                Attention::Flash => "flash attention",
            }
            .to_owned(),
        );
        if matches!(self.architecture, Architecture::Vision(_) | Architecture::Graph(_)) {
            words.pop();
        }
        words.join(" · ")
    }
}

pub(super) fn own_attention(architecture: &Architecture) -> Attention {
    match architecture {
        Architecture::Decoder(d) => d.attention,
        Architecture::Encoder(e) => e.attention,
        Architecture::EncoderDecoder(e) => e.attention,
        Architecture::Vision(_) | Architecture::Graph(_) => Attention::Sdpa,
    }
}

fn contradictions(settings: &Settings, mode: Mode) -> Result<()> {
    let no = |what: &str, help: &str| Err(Failure::new(what, help).into());
    if settings.seq.is_some() && settings.image.is_some() {
        return no("--seq and --image contradict each other", "give --seq for text, --image for pictures");
    }
    if mode == Mode::Infer {
        for (flag, given) in [
            ("--optimizer", settings.optimizer.is_some()),
            ("--checkpointing", settings.checkpointing.is_some()),
            ("--grad-accum", settings.grad_accum.is_some()),
            ("--lora", settings.lora.is_some()),
            ("--zero", settings.zero.is_some()),
            ("--cp", settings.cp.is_some_and(|d| d > 1)),
            ("--offload", settings.offload.is_some()),
        ] {
            if given {
                return no(&format!("{flag} has no meaning with --infer"), "leave one of them out");
            }
        }
    } else {
        for (flag, given) in [
            ("--kv-tokens", settings.kv_tokens.is_some()),
            ("--sparsity", settings.sparsity.is_some()),
            ("--quantize", settings.quantize.is_some()),
        ] {
            if given {
                let help = if flag == "--quantize" {
                    "weights that are trained are not quantised: --lora r=16,base=nf4 trains adapters on quantised ones; or add --infer"
                } else {
                    "add --infer, or leave it out"
                };
                return no(&format!("{flag} has no meaning when training"), help);
            }
        }
        if settings.precision == Some(PrecisionArg::Fp8) {
            return no(
                "fp8 training keeps its weights, gradients and states in wider types, and which depends on the library",
                "--precision mixed-fp32-grad is Megatron's recipe around fp8 products; --infer --precision fp8 serves 8-bit weights",
            );
        }
    }
    if settings.quantize.is_some() && settings.precision.is_some_and(|p| p == PrecisionArg::Fp8) {
        return no(
            "--quantize and --precision fp8 both name the format of the weights",
            "leave one of them out",
        );
    }
    Ok(())
}

/// A graph is what it is: nothing of how it runs can be changed.
fn graph_contradictions(settings: &Settings) -> Result<()> {
    for (flag, given) in [
        ("--precision", settings.precision.is_some()),
        ("--checkpointing", settings.checkpointing.is_some()),
        ("--attention", settings.attention.is_some()),
        ("--lora", settings.lora.is_some()),
        ("--quantize", settings.quantize.is_some()),
        ("--sparsity", settings.sparsity.is_some()),
        ("--kv-tokens", settings.kv_tokens.is_some()),
        ("--gpus", settings.gpus.is_some_and(|n| n > 1)),
    ] {
        if given {
            return Err(Failure::new(
                format!("{flag} cannot change an exported graph"),
                "export it so, or give the model's config.json",
            )
            .into());
        }
    }
    Ok(())
}

/// Tokens, or pixels a side.
fn length(settings: &Settings, architecture: &Architecture, notes: &mut Vec<String>) -> Result<u64> {
    if let Architecture::Vision(vision) = architecture {
        if settings.seq.is_some() {
            return Err(Failure::new(
                "--seq has no meaning for a model of pictures",
                "give --image, the pixels a side",
            )
            .into());
        }
        let own = if let Vision::Vit { image, .. } = vision { *image } else { 224 };
        let image = settings.image.unwrap_or(own);
        if let Vision::Vit { patch, .. } = vision
            && !image.is_multiple_of(*patch)
        {
            let help = format!("give a multiple of {patch}, as {}", image.next_multiple_of(*patch));
            return Err(Failure::new(
                format!("--image {image} does not divide into patches of {patch} pixels"),
                help,
            )
            .into());
        }
        if image < 32 {
            return Err(Failure::new(
                format!("--image {image} is less than these models can halve five times"),
                "give 32 or more",
            )
            .into());
        }
        return Ok(image);
    }
    if settings.image.is_some() {
        return Err(Failure::new(
            "--image has no meaning for a model of text",
            "give --seq, the tokens of a sequence",
        )
        .into());
    }
    if matches!(architecture, Architecture::Graph(_)) {
        if settings.seq.is_some() {
            return Err(Failure::new(
                "--seq cannot change an exported graph: its shapes are its own",
                "export it with other shapes, or give its config.json",
            )
            .into());
        }
        return Ok(1);
    }
    let (most, learned) = match architecture {
        Architecture::Decoder(d) => {
            (d.max_positions, matches!(d.style, DecoderStyle::Gpt2 | DecoderStyle::Opt))
        }
        // RoBERTa's first two positions are padding's.
        Architecture::Encoder(e) => {
            let padding = u64::from(e.style == gapless_fit::model::EncoderStyle::Roberta) * 2;
            (e.max_positions.saturating_sub(padding), true)
        }
        Architecture::EncoderDecoder(_) => (512, false),
        Architecture::Vision(_) | Architecture::Graph(_) => (u64::MAX, false),
    };
    let most = if most == 0 { u64::MAX } else { most };
    let length = settings.seq.unwrap_or(USUAL_LENGTH.min(most));
    if length > most && learned {
        return Err(Failure::new(
            format!("--seq {length} is more than the {most} positions that the model has learned"),
            format!("give --seq {most} or less"),
        )
        .into());
    }
    if length > most && !matches!(architecture, Architecture::EncoderDecoder(_)) {
        notes.push(format!("{length} tokens are more than the {most} that the configuration names"));
    }
    Ok(length)
}

fn device(settings: &Settings) -> Result<(Gpu, String)> {
    let named = settings.gpu.as_deref().map(hardware::find).transpose().map_err(|error| {
        Failure::new(
            format!("--gpu: no GPU is known as {:?}", error.asked),
            format!(
                "did you mean {}? Or give its memory, as --memory 24GiB. Known: {}",
                error.nearest, error.known
            ),
        )
    })?;
    let Some(text) = &settings.memory else {
        let gpu = match named {
            Some(gpu) => *gpu,
            None => *hardware::find(USUAL_GPU)?,
        };
        return Ok((gpu, gpu.name.to_owned()));
    };
    let memory = bytes("--memory", text)?;
    let base = named.copied().unwrap_or_else(|| hardware::unnamed(memory.0));
    let gpu = Gpu { memory_mib: memory.0 >> 20, ..base };
    let name =
        named.map_or_else(|| format!("a GPU of {memory}"), |gpu| format!("{} with {memory}", gpu.name));
    Ok((gpu, name))
}

fn bytes(flag: &str, text: &str) -> Result<Bytes> {
    let value: Bytes = text
        .parse()
        .map_err(|error| Failure::new(format!("{flag}: {error}"), format!("as in {flag} 24GiB")))?;
    if value.0 < 1 << 20 {
        return Err(Failure::new(
            format!("{flag} {text} is less than 1 MiB"),
            format!("name the unit, as in {flag} 24GiB"),
        )
        .into());
    }
    Ok(value)
}

/// `r=16,targets=qv,base=nf4`, or a bare rank.
fn lora(text: Option<&str>) -> Result<(Option<Lora>, Format, LoraTargets)> {
    let Some(text) = text else { return Ok((None, Format::Half, LoraTargets::All)) };
    let wrong =
        |what: String| anyhow::Error::from(Failure::new(what, "as in --lora r=16 or --lora r=16,base=nf4"));
    let (mut rank, mut base, mut targets) = (None, Format::Half, LoraTargets::All);
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or(("r", part));
        match key.trim() {
            "r" | "rank" => {
                let number: u64 = value
                    .trim()
                    .parse()
                    .map_err(|_| wrong(format!("--lora {text}: {value:?} is no rank")))?;
                if number == 0 || number > 1 << 16 {
                    return Err(wrong(format!("--lora {text}: a rank is from 1 to 65536")));
                }
                rank = Some(number);
            }
            "base" => {
                base = match value.trim() {
                    "bf16" | "fp16" | "16-bit" => Format::Half,
                    "nf4" => Format::Nf4,
                    "nf4-double" => Format::Nf4Double,
                    "int8" => Format::Int8,
                    "fp8" => Format::Fp8,
                    "int4" => Format::Int4(128),
                    other => {
                        return Err(wrong(format!(
                            "--lora {text}: no base format is called {other:?}: bf16, int8, fp8, int4, nf4, nf4-double"
                        )));
                    }
                };
            }
            "targets" => {
                targets = match value.trim() {
                    "all" => LoraTargets::All,
                    "qv" => LoraTargets::QueryValue,
                    other => {
                        return Err(wrong(format!("--lora {text}: targets are all or qv, not {other:?}")));
                    }
                };
            }
            other => return Err(wrong(format!("--lora {text}: {other:?} is not known"))),
        }
    }
    let rank = rank.ok_or_else(|| wrong(format!("--lora {text} names no rank")))?;
    Ok((Some(Lora { rank }), base, targets))
}

/// All that can be said of a file of weights without an architecture.
fn weights_alone(path: &str, model: &Model) -> anyhow::Error {
    let notes = if model.notes.is_empty() { String::new() } else { format!(": {}", model.notes.join("; ")) };
    let known = model.weights.as_ref().map_or_else(String::new, |weights| {
        let elements: u128 =
            weights.iter().map(|w| w.shape.iter().map(|&s| u128::from(s)).product::<u128>()).sum();
        let bytes: u64 = weights.iter().map(|w| w.bytes).sum();
        format!(
            ". What is exact: {} tensors, {elements} parameters, {} as stored ({bytes} B)",
            weights.len(),
            Bytes(bytes)
        )
    });
    Failure::new(
        format!("{path}: the architecture is not known{notes}{known}"),
        "put the model's config.json beside the weights, or name a built-in model of the same architecture",
    )
    .into()
}

fn simulated(precision: PrecisionArg) -> eager::Precision {
    match precision {
        PrecisionArg::Fp32 => eager::Precision::Fp32,
        PrecisionArg::Fp16 => eager::Precision::Fp16,
        PrecisionArg::AmpBf16 => eager::Precision::AmpBf16,
        PrecisionArg::AmpFp16 => eager::Precision::AmpFp16,
        PrecisionArg::Bf16 | PrecisionArg::Mixed | PrecisionArg::MixedFp32Grad | PrecisionArg::Fp8 => {
            eager::Precision::Bf16
        }
    }
}

fn closed(precision: PrecisionArg) -> Precision {
    match precision {
        PrecisionArg::Fp32 => Precision::Fp32,
        PrecisionArg::Fp16 => Precision::Fp16,
        PrecisionArg::AmpBf16 | PrecisionArg::AmpFp16 => Precision::AmpBf16,
        PrecisionArg::Bf16 | PrecisionArg::Fp8 => Precision::Bf16,
        PrecisionArg::Mixed => Precision::Mixed,
        PrecisionArg::MixedFp32Grad => Precision::MixedMainGrad,
    }
}

fn stepped(optimizer: OptimizerArg) -> eager::Optimizer {
    match optimizer {
        OptimizerArg::Adamw => eager::Optimizer::AdamW,
        OptimizerArg::AdamwFused => eager::Optimizer::AdamWFused,
        OptimizerArg::Adamw8bit => eager::Optimizer::AdamW8bit,
        OptimizerArg::Sgd => eager::Optimizer::Sgd,
        OptimizerArg::SgdMomentum => eager::Optimizer::SgdMomentum,
        OptimizerArg::Adafactor => eager::Optimizer::Adafactor,
        OptimizerArg::Rmsprop => eager::Optimizer::RmsProp,
        OptimizerArg::Adagrad => eager::Optimizer::Adagrad,
        OptimizerArg::Lion => eager::Optimizer::Lion,
        OptimizerArg::Muon => eager::Optimizer::Muon,
    }
}

fn closed_optimizer(optimizer: OptimizerArg) -> Optimizer {
    match optimizer {
        OptimizerArg::Adamw => Optimizer::AdamW,
        OptimizerArg::AdamwFused => Optimizer::AdamWFused,
        OptimizerArg::Adamw8bit => Optimizer::AdamW8bit,
        OptimizerArg::Sgd => Optimizer::Sgd,
        OptimizerArg::SgdMomentum => Optimizer::SgdMomentum,
        OptimizerArg::Adafactor => Optimizer::Adafactor,
        OptimizerArg::Rmsprop => Optimizer::RmsProp,
        OptimizerArg::Adagrad => Optimizer::Adagrad,
        OptimizerArg::Lion => Optimizer::Lion,
        OptimizerArg::Muon => Optimizer::Muon,
    }
}

/// The simulation's optimizer of a plan, where there is one.
pub(super) fn simulated_optimizer(optimizer: Optimizer) -> Option<eager::Optimizer> {
    Some(match optimizer {
        Optimizer::AdamW => eager::Optimizer::AdamW,
        Optimizer::AdamWFused => eager::Optimizer::AdamWFused,
        Optimizer::AdamW8bit => eager::Optimizer::AdamW8bit,
        Optimizer::Sgd => eager::Optimizer::Sgd,
        Optimizer::SgdMomentum => eager::Optimizer::SgdMomentum,
        Optimizer::Adafactor => eager::Optimizer::Adafactor,
        Optimizer::RmsProp => eager::Optimizer::RmsProp,
        Optimizer::Adagrad => eager::Optimizer::Adagrad,
        Optimizer::Lion => eager::Optimizer::Lion,
        Optimizer::Muon => eager::Optimizer::Muon,
        Optimizer::AdamWForLoop | Optimizer::AmsGrad => return None,
    })
}

fn sharding(zero: ZeroArg) -> Sharding {
    match zero {
        ZeroArg::Zero0 => Sharding::Ddp,
        ZeroArg::Zero1 => Sharding::Zero1,
        ZeroArg::Zero2 => Sharding::Zero2,
        ZeroArg::Zero3 => Sharding::Zero3,
        ZeroArg::Fsdp => Sharding::Fsdp,
    }
}
