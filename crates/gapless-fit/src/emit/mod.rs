//! A plan as something that runs: a Python script, a configuration file, or a command line.
//!
//! Scripts are templates whose behaviour follows from two JSON values written into them, the plan and the model's
//! configuration, so the tests check the syntax of the very text that users get. A target that cannot realise a plan is
//! an error that names a target that can. The files do not depend on time or place: the same plan gives the same bytes.

mod configuration;
mod script;
mod serve;

pub use serve::{ServeRecipe, vllm};

use crate::model::Attention;
use crate::search::profile::Profile;
use crate::search::space::{Config, Space};
use crate::search::train::Plan;
use serde_json::Value;

/// The program that runs the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Plain PyTorch, with DistributedDataParallel if there are several GPUs.
    Torch,
    /// PyTorch's `fully_shard`.
    Fsdp,
    DeepSpeed,
    Accelerate,
}

impl Target {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Target::Torch => "torch",
            Target::Fsdp => "fsdp",
            Target::DeepSpeed => "deepspeed",
            Target::Accelerate => "accelerate",
        }
    }

    /// Narrows a space to what this target can realise, so that the cheapest plan of it can be emitted. A dimension of
    /// which nothing is left is an error of the search, which names it.
    pub fn restrict(self, space: &mut Space) {
        configuration::restrict(self, space);
    }
}

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub name: &'static str,
    pub text: String,
}

/// The contents of the files.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// How the plan is called in output.
    pub name: String,
    /// The model's config.json, whole: the script builds the model from it. For a network of torchvision its row of the
    /// table of names, with `name` and `num_classes`.
    pub model: Value,
    /// Folder or name to load weights from; random ones if there is none.
    pub weights: Option<String>,
    pub attention: Attention,
    /// The layers that peft adapts if none are named.
    pub usual_targets: &'static [&'static str],
    pub blocks: u64,
    pub config: Config,
    /// Blocks that run forward again in backward, and those of which only the attention core does.
    pub recompute: Vec<u64>,
    pub selective: Vec<u64>,
    pub predicted_peak_allocated: Option<u64>,
    pub gpus_per_node: u64,
    pub nodes: u64,
    pub steps: u64,
}

/// The reason why a target cannot realise a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    #[error("{target} cannot realise {what}: {hint}")]
    Cannot { target: &'static str, what: String, hint: &'static str },
    #[error("the model's configuration has no model_type: give the folder of a Hugging Face model")]
    NoModelType,
    #[error("the network of torchvision has no {0}: give it by its built-in name")]
    NoNetwork(&'static str),
    #[error("block {block} is to be recomputed, but there are {blocks}")]
    NoSuchBlock { block: u64, blocks: u64 },
}

impl Recipe {
    /// A plan of the search. Of each kind the first blocks are recomputed, since backward needs the saved tensors of
    /// the last ones again at once.
    #[must_use]
    pub fn from_plan(profile: &Profile, plan: &Plan, model: Value, gpus_per_node: u64, nodes: u64) -> Recipe {
        let mut left = plan.counts.clone();
        let (mut recompute, mut selective) = (Vec::new(), Vec::new());
        for (block, &kind) in profile.order.iter().enumerate() {
            let Some([_, half, full]) = left.get_mut(kind) else { continue };
            if *full > 0 {
                *full -= 1;
                recompute.push(block as u64);
            } else if *half > 0 {
                *half -= 1;
                selective.push(block as u64);
            }
        }
        Recipe {
            name: profile.name.clone(),
            model,
            weights: None,
            attention: Attention::Sdpa,
            usual_targets: &[],
            blocks: profile.blocks(),
            config: plan.config,
            recompute,
            selective,
            predicted_peak_allocated: None,
            gpus_per_node,
            nodes,
            steps: 3,
        }
    }

    /// True if the model is torchvision's, not transformers'.
    pub(crate) fn is_torchvision(&self) -> bool {
        self.model
            .get("model_type")
            .and_then(Value::as_str)
            .is_some_and(|kind| kind.starts_with("torchvision_"))
    }

    /// The files that realise the plan with this target.
    pub fn emit(&self, target: Target) -> Result<Vec<File>, EmitError> {
        if self.model.get("model_type").and_then(Value::as_str).is_none() && self.weights.is_none() {
            return Err(EmitError::NoModelType);
        }
        if self.is_torchvision() {
            for (key, given) in [
                ("name", self.model["name"].is_string()),
                ("num_classes", self.model["num_classes"].is_u64()),
            ] {
                if !given {
                    return Err(EmitError::NoNetwork(key));
                }
            }
        }
        let mut named = self.recompute.iter().chain(&self.selective);
        if let Some(&block) = named.find(|&&block| block >= self.blocks) {
            return Err(EmitError::NoSuchBlock { block, blocks: self.blocks });
        }
        configuration::check(self, target)?;
        let mut files = vec![script::write(self, target)];
        match target {
            Target::DeepSpeed => files.push(configuration::deepspeed(self)),
            Target::Accelerate => files.push(configuration::accelerate(self)),
            Target::Torch | Target::Fsdp => {}
        }
        Ok(files)
    }
}
