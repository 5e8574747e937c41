//! A run and a plan in one line of words.

use super::question::Question;
use crate::formulas::weights::Format;
use crate::model::{Architecture, Attention};
use crate::search::cost::Cost;
use crate::search::space::Config;
use crate::settings::{Checkpointing, Lora, LoraTargets};

impl Question {
    /// The run in one line.
    #[must_use]
    pub fn headline(&self) -> String {
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
                run.precision.name()
            } else {
                self.format.name()
            }
            .to_owned(),
        ];
        if self.trains() {
            words.push(run.optimizer.name().to_owned());
            words.push(
                match self.checkpointing {
                    Checkpointing::None => "no gradient checkpointing",
                    Checkpointing::Full => "gradient checkpointing",
                    Checkpointing::Selective => "selective gradient checkpointing",
                    Checkpointing::Optimal => "gradient checkpointing as needed",
                }
                .to_owned(),
            );
            if run.accumulation > 1 {
                words.push(format!("gradient accumulation {}", run.accumulation));
            }
            if let Some(lora) = run.lora {
                words.push(adapters(lora, self.format));
            }
        }
        words.push(
            match self.attention() {
                Attention::Sdpa => "sdpa",
                Attention::Eager => "eager attention",
                Attention::Flash => "flash attention",
            }
            .to_owned(),
        );
        if matches!(
            self.architecture,
            Architecture::Vision(_) | Architecture::Graph(_) | Architecture::Counted(_)
        ) {
            words.pop();
        }
        if let Some(engine) = self.engine {
            words.push(format!("served by {}", engine.name()));
        }
        words.join(" · ")
    }
}

/// Low-rank adapters on frozen weights: QLoRA if those have 4 bits, as people call them.
fn adapters(lora: Lora, base: Format) -> String {
    let name = match (base.bits() < 8.0, lora.dora) {
        (true, false) => "QLoRA",
        (true, true) => "QDoRA",
        (false, true) => "DoRA",
        (false, false) => "LoRA",
    };
    let targets = match lora.targets {
        LoraTargets::All => "all linear layers".to_owned(),
        LoraTargets::QueryValue => "peft's usual layers".to_owned(),
        LoraTargets::Only(names) => names.list().collect::<Vec<_>>().join("+"),
    };
    let saved = match (lora.save_head, lora.save_embedding) {
        (false, false) => "",
        (true, false) => ", the head trained too",
        (false, true) => ", the embedding trained too",
        (true, true) => ", embedding and head trained too",
    };
    let kept = if lora.narrow { "16-bit" } else { "fp32" };
    format!("{name} r={} on {} weights: {kept} adapters on {targets}{saved}", lora.rank, base.name())
}

/// The terms that are not zero, largest first.
pub(super) fn terms(cost: &Cost) -> Vec<(&'static str, f64)> {
    let mut terms = vec![
        ("compute", cost.compute),
        ("recompute", cost.recompute),
        ("bubble", cost.bubble),
        ("tensor", cost.tensor),
        ("pipeline", cost.pipeline),
        ("context", cost.context),
        ("expert", cost.expert),
        ("data", cost.data),
        ("offload", cost.offload),
        ("optimizer", cost.optimizer),
    ];
    terms.retain(|(_, seconds)| *seconds > 0.0);
    terms.sort_by(|a, b| b.1.total_cmp(&a.1));
    terms
}

/// A configuration in words.
pub(super) fn describe(c: &Config, full: u64, half: u64, blocks: u64) -> String {
    let mut words = Vec::new();
    if c.gpus() > 1 {
        for (name, degree) in
            [("dp", c.data), ("tp", c.tensor), ("pp", c.pipeline), ("cp", c.context), ("ep", c.expert)]
        {
            if degree > 1 {
                words.push(format!("{name} {degree}"));
            }
        }
        if c.chunks > 1 {
            words.push(format!("{} chunks a stage", c.chunks));
        }
        words.push(c.sharding.name().to_owned());
    }
    words.push(format!("micro-batch {} x {}", c.micro_batch, c.accumulation));
    words.push(match (full, half) {
        (0, 0) => "no gradient checkpointing".to_owned(),
        (full, 0) if full == blocks => "gradient checkpointing".to_owned(),
        (0, half) => format!("gradient checkpointing of the attention core of {half} of {blocks} blocks"),
        (full, 0) => format!("gradient checkpointing of {full} of {blocks} blocks"),
        (full, half) => {
            format!("gradient checkpointing of {full} of {blocks} blocks, of the attention core of {half}")
        }
    });
    words.push(c.optimizer.name().to_owned());
    if let Some(lora) = c.lora {
        words.push(adapters(lora, c.format));
    }
    let away: Vec<&str> = [
        (c.offload.optimizer, "optimizer"),
        (c.offload.parameters, "parameters"),
        (c.offload.activations, "activations"),
    ]
    .iter()
    .filter(|(away, _)| *away)
    .map(|(_, name)| *name)
    .collect();
    if !away.is_empty() {
        words.push(format!("CPU offload of {}", away.join(" and ")));
    }
    words.join(" · ")
}
