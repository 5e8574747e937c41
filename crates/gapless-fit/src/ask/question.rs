//! Turns a user's settings into a question: chooses all others, and notes each choice that may surprise.

use super::asked::{Asked, Degrees, Emit, StreamBudget};
use super::error::AskError;
use super::{kept, policy, refuse};
use crate::eager::{Mode, Recomputed, Run};
use crate::emit::Target;
use crate::formulas::sharding::Sharding;
use crate::formulas::weights::Format;
use crate::hardware::{self, Cluster, Gpu};
use crate::model::{Architecture, Attention, Model, Vision};
use crate::read;
use crate::search::space::Offload;
use crate::settings::{Checkpointing, Engine, Optimizer, Precision};
use crate::stored::Stored;
use crate::weigh::Beside;
use gapless_trace::Bytes;
use gapless_trace::numbers::plural;
use std::path::Path;
use std::sync::Arc;

/// A model and all that is set.
#[derive(Clone, Debug)]
pub struct Question {
    /// As it was asked for.
    pub path: String,
    pub model: Model,
    pub architecture: Architecture,
    /// The run that is simulated. It recomputes nothing if `checkpointing` is neither all nor nothing.
    pub run: Run,
    pub checkpointing: Checkpointing,
    pub format: Format,
    /// How the weights are stored that are served, or frozen below adapters.
    pub stored: Option<Arc<Stored>>,
    /// Bytes that the engine adds to them.
    pub beside: Beside,
    pub sparse: bool,
    pub kv_tokens: Option<u64>,
    pub cluster: Cluster,
    pub gpu_name: String,
    pub degrees: Degrees,
    pub offload: Option<Offload>,
    /// Weights stream from the host within this budget.
    pub stream: Option<StreamBudget>,
    pub zero: Option<Sharding>,
    /// The serving engine; a plain forward pass if none is named.
    pub engine: Option<Engine>,
    /// Share of the device that the engine may take, if it was given.
    pub utilization: Option<f64>,
    /// The settings that were given rather than chosen: a search leaves them alone.
    pub given: Given,
    pub notes: Vec<String>,
}

/// The settings that were given rather than chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given {
    pub optimizer: bool,
    pub checkpointing: bool,
    pub accumulation: bool,
}

impl Question {
    /// Reads the model at `path`, a file, a folder or a built-in name, and chooses the settings that are not given.
    ///
    /// # Errors
    /// When there is no such model, when the settings contradict each other, or when the model cannot take it.
    pub fn read(path: &str, asked: &Asked) -> Result<Question, AskError> {
        let options = read::Options { batch: asked.batch };
        // A folder without a configuration has nothing that an estimate could run.
        let is_there = |name: &str| Path::new(path).join(name).is_file();
        let configuration =
            path.ends_with(".json") || is_there("config.json") || is_there("model_index.json");
        let model = read::open_with(path, &options).map_err(|error| {
            let told = AskError::new(
                error.to_string(),
                "`gapless fit --help` shows what a MODEL can be, `gapless fit --list` the built-in ones",
            );
            let unknown = matches!(error.problem, read::Problem::Unsupported { .. });
            if unknown && configuration { told.estimable() } else { told }
        })?;
        let unknown = model.architecture.is_none();
        Question::about(path, model, asked)
            .map_err(|error| if unknown && configuration { error.estimable() } else { error })
    }

    /// The question about a model that was read already, under this name.
    ///
    /// # Errors
    /// When the settings contradict each other, or when the model cannot take it.
    pub fn about(path: &str, model: Model, asked: &Asked) -> Result<Question, AskError> {
        let Some(architecture) = model.architecture.clone() else { return Err(weights_alone(path, &model)) };
        let mut notes = model.notes.clone();
        let mode = if asked.infer { Mode::Infer } else { Mode::Train };
        refuse::counts(asked)?;
        refuse::contradictions(asked, mode)?;
        if matches!(architecture, Architecture::Graph(_)) {
            refuse::graph_contradictions(asked)?;
        }
        if let Architecture::Counted(counted) = &architecture {
            refuse::counted(path, asked, counted)?;
        }
        let length = refuse::length(asked, &architecture, &mut notes)?;
        refuse::tokens(asked.batch.unwrap_or(1), length)?;
        let (gpu, gpu_name) = device(asked)?;
        let checkpointing = asked.checkpointing.unwrap_or_default();
        if matches!(architecture, Architecture::Vision(Vision::Vgg { .. }))
            && checkpointing != Checkpointing::None
        {
            return Err(AskError::new(
                "the layers of VGG form no blocks that could be recomputed",
                "leave out --checkpointing; a smaller --batch with more --grad-accum takes less",
            ));
        }
        let mut run = asked_run(asked, mode, length, &mut notes);
        if mode == Mode::Infer && asked.engine.is_none() && matches!(architecture, Architecture::Decoder(_)) {
            notes.push(
                "a plain forward pass keeps the logits of all tokens; --engine transformers, vllm or sglang keeps the last token's"
                    .to_owned(),
            );
        }
        notes.extend(formats_of_the_gpu(asked, &gpu, run.precision));
        let scores = run.attention(own_attention(&architecture)) == Attention::Eager;
        if checkpointing == Checkpointing::Selective && !scores {
            notes.push(
                "selective checkpointing recomputes attention scores, and with sdpa or flash there are none: nothing is recomputed".to_owned(),
            );
        }
        let kept = kept::weights(path, &model, &architecture, asked, &gpu, &mut notes)?;
        let (format, stored, beside) = (kept.format, kept.stored, kept.beside);
        run.stored.clone_from(&stored);
        run.more_cache = kept::more_cache(&architecture, asked, &run);
        let cluster = asked_cluster(asked, gpu)?;
        Ok(Question {
            path: path.to_owned(),
            model,
            architecture,
            run,
            checkpointing,
            format,
            stored,
            beside,
            sparse: asked.sparse,
            kv_tokens: asked.kv_tokens,
            cluster,
            gpu_name,
            degrees: asked.degrees,
            offload: asked.offload,
            stream: asked.stream,
            zero: asked.zero,
            engine: asked.engine,
            utilization: asked.utilization,
            given: Given {
                optimizer: asked.optimizer.is_some(),
                checkpointing: asked.checkpointing.is_some_and(|c| c != Checkpointing::Optimal),
                accumulation: asked.grad_accum.is_some() && asked.batch.is_some(),
            },
            notes,
        })
    }

    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.cluster.gpu
    }

    /// Of one device.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        Bytes(self.cluster.gpu.memory())
    }

    #[must_use]
    pub fn trains(&self) -> bool {
        self.run.mode == Mode::Train
    }

    /// The attention that is run.
    #[must_use]
    pub fn attention(&self) -> Attention {
        self.run.attention(own_attention(&self.architecture))
    }

    /// True if one simulated GPU is the whole answer.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        let stays = self.offload.is_none_or(|o| o == Offload::default());
        let selective =
            self.checkpointing == Checkpointing::Selective && self.attention() == Attention::Eager;
        self.cluster.gpus() == 1 && self.run.precision.is_plain() && stays && !selective
    }

    /// True if the user laid out the GPUs, rather than only counted them.
    #[must_use]
    pub fn is_laid_out(&self) -> bool {
        let d = &self.degrees;
        let any = [d.data, d.tensor, d.pipeline, d.context, d.expert].iter().any(Option::is_some);
        any || self.zero.is_some() || self.offload.is_some() || self.cluster.gpus() == 1
    }

    /// True if a server with a paged cache runs it.
    #[must_use]
    pub fn is_paged(&self) -> bool {
        matches!(self.engine, Some(Engine::Vllm | Engine::Sglang))
    }

    #[must_use]
    pub fn is_picture(&self) -> bool {
        matches!(self.architecture, Architecture::Vision(_))
    }

    #[must_use]
    pub fn is_graph(&self) -> bool {
        matches!(self.architecture, Architecture::Graph(_))
    }
}

/// The run that is simulated, before its weights are known.
fn asked_run(asked: &Asked, mode: Mode, length: u64, notes: &mut Vec<String>) -> Run {
    Run {
        mode,
        batch: asked.batch.unwrap_or(1),
        length,
        precision: asked.precision.unwrap_or_else(|| usual_precision(asked, notes)),
        optimizer: asked.optimizer.unwrap_or(Optimizer::AdamW),
        recomputed: match asked.checkpointing.unwrap_or_default() {
            Checkpointing::Full => Recomputed::All,
            _ => Recomputed::None,
        },
        attention: asked.attention,
        lora: asked.adapters.map(|adapters| adapters.lora),
        stored: None,
        more_cache: 0,
        accumulation: asked.grad_accum.unwrap_or(1),
        steps: policy::STEPS,
        last_logits: asked.engine == Some(Engine::Transformers),
        note_ops: false,
    }
}

/// The GPUs: given, or as many as the degrees take.
fn asked_cluster(asked: &Asked, gpu: Gpu) -> Result<Cluster, AskError> {
    let degrees = asked.degrees;
    let product: u64 = [degrees.data, degrees.tensor, degrees.pipeline, degrees.context]
        .iter()
        .map(|d| d.unwrap_or(1))
        .product();
    let nodes = asked.nodes.unwrap_or(1);
    let per_node = match asked.gpus {
        Some(gpus) => gpus,
        None if product > 1 => product.div_ceil(nodes),
        // An expert-parallel group lies within the data-parallel one.
        None => degrees.expert.unwrap_or(1),
    };
    let gpus = per_node * nodes;
    if !gpus.is_multiple_of(product) || degrees.data.is_some() && product != gpus {
        return Err(AskError::new(
            format!(
                "the degrees multiply to {product}, which does not divide {} evenly",
                plural(gpus, "GPU")
            ),
            "dp x tp x pp x cp is the number of GPUs: change a degree, --gpus or --nodes",
        ));
    }
    if gpus == 1 && asked.zero.is_some_and(|zero| zero != Sharding::Ddp) {
        let what = "--zero shares states between GPUs, and there is one";
        return Err(AskError::new(what, "add --gpus, or leave it out; --offload moves states to the host"));
    }
    let mut cluster = Cluster::new(gpu, per_node, nodes);
    if let Some(memory) = asked.host_memory {
        cluster.host_memory = memory.0;
    }
    Ok(cluster)
}

/// Notes on formats that were asked for and that the GPU does not compute in.
fn formats_of_the_gpu(asked: &Asked, gpu: &Gpu, precision: Precision) -> Vec<String> {
    let mut notes = Vec::new();
    let is_named = asked.gpu.is_some() && gpu.name != hardware::UNNAMED;
    let is_bf16 = matches!(precision, Precision::Bf16 | Precision::AmpBf16 | Precision::Bf16Fp32States);
    if is_named && is_bf16 && !gpu.has_bf16() {
        notes.push(format!(
            "{} does not compute in bf16: PyTorch emulates it slowly and vLLM refuses it; --precision {} takes the same memory",
            gpu.name,
            if precision == Precision::AmpBf16 { "amp-fp16" } else { "fp16" }
        ));
    }
    let is_fp8 = asked.fp8 || asked.quantize == Some(Format::Fp8);
    if is_named && is_fp8 && !gpu.has_fp8() {
        notes.push(format!(
            "{} does not compute in fp8: an engine keeps the weights in 8 bits and computes in 16, or refuses; int8 and int4 \
             are the usual formats there",
            gpu.name
        ));
    }
    if is_named && asked.attention == Some(Attention::Flash) && !gpu.has_bf16() {
        notes.push(format!("flash attention needs a card from Ampere on, and {} is older", gpu.name));
    }
    notes
}

/// The precision if none is given: bf16, or one that the asked target can keep.
fn usual_precision(asked: &Asked, notes: &mut Vec<String>) -> Precision {
    if asked.emit != Some(Emit::Train(Target::DeepSpeed)) || asked.infer {
        return Precision::Bf16;
    }
    notes.push(
        "DeepSpeed keeps fp32 master copies of 16-bit weights: --precision mixed is taken; --precision fp32 is the other choice"
            .to_owned(),
    );
    Precision::Mixed
}

/// The attention that a model runs if none is given.
#[must_use]
pub(super) fn own_attention(architecture: &Architecture) -> Attention {
    match architecture {
        Architecture::Decoder(d) => d.attention,
        Architecture::Encoder(e) => e.attention,
        Architecture::EncoderDecoder(e) => e.attention,
        Architecture::Vision(_) | Architecture::Graph(_) | Architecture::Counted(_) => Attention::Sdpa,
    }
}

fn device(asked: &Asked) -> Result<(Gpu, String), AskError> {
    let found = asked.gpu.as_deref().map(hardware::find).transpose();
    let named = match (found, asked.memory) {
        (Ok(named), _) => named,
        // An unknown card whose memory is given: its name is only a name.
        (Err(unknown), Some(memory)) if !unknown.is_ambiguous => {
            return Ok((hardware::unnamed(memory.0), format!("{} with {memory}", unknown.asked)));
        }
        (Err(unknown), _) => return Err(AskError::new(format!("--gpu: {unknown}"), unknown.help())),
    };
    let Some(memory) = asked.memory else {
        let gpu = match named {
            Some(gpu) => *gpu,
            None => *hardware::find(policy::USUAL_GPU)
                .map_err(|error| AskError::new(error.to_string(), "give --gpu"))?,
        };
        return Ok((gpu, gpu.name.to_owned()));
    };
    let base = named.copied().unwrap_or_else(|| hardware::unnamed(memory.0));
    let gpu = Gpu { memory_mib: memory.0 >> 20, ..base };
    let name =
        named.map_or_else(|| format!("a GPU of {memory}"), |gpu| format!("{} with {memory}", gpu.name));
    Ok((gpu, name))
}

/// All that can be said of a file of weights without an architecture.
fn weights_alone(path: &str, model: &Model) -> AskError {
    let notes = if model.notes.is_empty() { String::new() } else { format!(": {}", model.notes.join("; ")) };
    let known = model.weights.as_ref().map_or_else(String::new, |weights| {
        let elements: u128 =
            weights.iter().map(|w| w.shape.iter().map(|&s| u128::from(s)).product::<u128>()).sum();
        let bytes: u64 = weights.iter().map(|w| w.bytes).sum();
        format!(
            ". What is exact: {}, {elements} parameters, {} as stored ({bytes} B)",
            plural(weights.len() as u64, "tensor"),
            Bytes(bytes)
        )
    });
    AskError::new(
        format!("{path}: the architecture is not known{notes}{known}"),
        "put the model's config.json beside the weights, or name a built-in model of the same architecture",
    )
}
