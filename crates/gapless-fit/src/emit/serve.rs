//! A serving plan as vLLM's command line.

use super::{EmitError, File};
use crate::formulas::weights::Format;
use crate::search::serve::ServePlan;

/// The server's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeRecipe {
    /// A folder or a name that vLLM finds.
    pub model: String,
    pub plan: ServePlan,
    /// Sequences at once on one replica.
    pub sequences: u64,
}

/// A shell script that starts the server.
pub fn vllm(recipe: &ServeRecipe) -> Result<File, EmitError> {
    let plan = &recipe.plan;
    let quantization = match plan.format {
        Format::Half => None,
        Format::Fp8 => Some("fp8"),
        Format::Nf4 | Format::Nf4Double => Some("bitsandbytes"),
        // A quantised checkpoint says so itself.
        Format::Int4(_) | Format::Int8 | Format::Mxfp4 | Format::Nvfp4 | Format::Stored { .. } => None,
        Format::F32
        | Format::Q2K
        | Format::Q3K
        | Format::Q4_0
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K
        | Format::Q8_0 => {
            return Err(EmitError::Cannot {
                target: "vllm",
                what: format!("weights in {}", plan.format.name()),
                hint: "plan with 16-bit, fp8, nf4, or a checkpoint in int4 or int8",
            });
        }
    };
    if plan.sparse {
        return Err(EmitError::Cannot {
            target: "vllm",
            what: "2:4 sparsity from a dense checkpoint".to_owned(),
            hint: "give a checkpoint that is sparse already",
        });
    }
    let mut words = vec![
        format!("--dtype {}", "bfloat16"),
        format!("--tensor-parallel-size {}", plan.tensor),
        format!("--pipeline-parallel-size {}", plan.pipeline),
        format!("--max-model-len {}", plan.context),
        format!("--max-num-seqs {}", recipe.sequences.max(1)),
        format!("--max-num-batched-tokens {}", plan.batched_tokens),
        format!("--gpu-memory-utilization {}", plan.utilization),
        format!("--block-size {}", plan.page),
    ];
    if plan.replicas > 1 {
        words.push(format!("--data-parallel-size {}", plan.replicas));
    }
    if plan.cache_bytes == 1 {
        words.push("--kv-cache-dtype fp8".to_owned());
    }
    if let Some(quantization) = quantization {
        words.push(format!("--quantization {quantization}"));
    }
    if plan.expert_parallel {
        words.push("--enable-expert-parallel".to_owned());
    }
    let model = recipe.model.replace('\'', "'\\''");
    let text = format!(
        "#!/bin/sh\n# {} tokens fit in the cache of each replica.\nexec vllm serve '{model}' \\\n  {}\n",
        plan.tokens,
        words.join(" \\\n  ")
    );
    Ok(File { name: "serve.sh", text })
}
