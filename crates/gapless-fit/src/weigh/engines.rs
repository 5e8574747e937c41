//! Memory that an engine adds when it loads stored weights: copies, padding, workspaces, or 16 bits if it has no
//! kernel.
//!
//! From vLLM 0.11 (`quantization/mxfp4.py`, `marlin_utils.py`, `mla/common.py`, `bitsandbytes.py`) and transformers
//! 5.23 (`quantizers/`).

use super::{matrices, orientation};
use crate::hardware::Gpu;
use crate::model::{Architecture, Role};
use crate::parameters::parameters;
use crate::settings::Engine;
use crate::stored::{Layout, ScaleType, Stored};

/// A workspace of Marlin's kernels for each layer: a lock for each multiprocessor, rounded by the allocator.
const MARLIN_WORKSPACE: u64 = 1024;

/// Bytes beside the weights as they are stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Beside {
    /// As long as the engine runs.
    pub held: u64,
    /// Within a forward pass.
    pub working: u64,
    /// The engine keeps 16 bits instead.
    pub dequantised: bool,
    pub notes: Vec<String>,
}

/// Bytes that `engine` adds to `stored` on `gpu`; weights that are not quantised have `half` bytes an element.
#[must_use]
pub fn beside(
    stored: &Stored,
    architecture: &Architecture,
    engine: Option<Engine>,
    gpu: &Gpu,
    half: u64,
) -> Beside {
    let mut beside = Beside::default();
    let paged = matches!(engine, Some(Engine::Vllm | Engine::Sglang));
    let capability = if gpu.is_rocm() { 94 } else { gpu.compute_capability };
    let layouts = || {
        let own = [stored.linears, stored.experts, stored.head].into_iter().flatten();
        own.chain(stored.rules.iter().filter_map(|rule| rule.layout))
    };
    let is_fp8 = |l: Layout| matches!(l, Layout::Bytes { scale: ScaleType::Float32 | ScaleType::Byte, .. });
    let is_float4 = |l: Layout| matches!(l, Layout::Float4 { .. });
    let name = engine.map_or("transformers", Engine::name);
    if !paged {
        if layouts().any(is_fp8) && stored.method.contains("fp8") && !gpu.has_fp8() {
            beside.dequantised = true;
            beside.notes.push(format!(
                "{} has no kernels for fp8: {name} keeps the weights in 16 bits instead",
                gpu.name
            ));
        } else if stored.method == "mxfp4" {
            if capability < 75 {
                beside.dequantised = true;
            }
            beside.notes.push(if beside.dequantised {
                format!("{} has no kernels for MXFP4: {name} keeps the experts in 16 bits instead", gpu.name)
            } else {
                "without the packages kernels and triton 3.4, transformers turns MXFP4 into 16 bits as it loads"
                    .to_owned()
            });
        }
        return beside;
    }
    let marlin = |l: Layout| match l {
        Layout::Gptq { .. } | Layout::AwqGemm { .. } | Layout::Packed { .. } | Layout::Marlin24 { .. } => {
            capability >= 75
        }
        Layout::Float4 { group: 16, .. } => capability < 100,
        Layout::Float4 { .. } => (75..90).contains(&capability),
        layout => is_fp8(layout) && !gpu.has_fp8(),
    };
    if layouts().any(marlin) {
        let (turned, fused) = orientation(architecture);
        let list = parameters(architecture);
        let layers = list.iter().filter(|p| stored.layout(p).is_some_and(marlin));
        let count = layers.filter(|p| matrices(p, turned, fused).is_some()).count() as u64;
        beside.held += count * MARLIN_WORKSPACE;
        beside.notes.push(if layouts().any(is_fp8) && !gpu.has_fp8() {
            format!(
                "{} does not compute in fp8: {name} keeps the weights in 8 bits and multiplies in 16, with Marlin's \
                 kernels",
                gpu.name
            )
        } else if layouts().any(is_float4) {
            format!("{name} runs these weights with Marlin's kernels on {}: products in 16 bits", gpu.name)
        } else {
            format!("{name} runs these weights with Marlin's kernels: a workspace for each layer, no copies")
        });
    }
    if stored.method == "mxfp4" {
        pad(&mut beside, stored, architecture, capability, half);
    }
    if layouts().any(|l| matches!(l, Layout::Bits4 { .. } | Layout::Bits8)) {
        // One layer at a time is dequantised; gate and up, or queries, keys and values, are one layer.
        let largest = parameters(architecture)
            .iter()
            .filter(|p| p.role == Role::Matrix && stored.layout(p).is_some())
            .map(|p| if p.name.contains("gate_proj") { 2 * p.elements() } else { p.elements() })
            .max()
            .unwrap_or(0);
        beside.working = largest * half;
        beside.notes.push(format!("{name} turns one layer at a time into 16 bits for long inputs"));
    }
    beside
}

/// The kernels for MXFP4 experts want sides that are multiples of some power of two, and vLLM pads them with zeros.
fn pad(beside: &mut Beside, stored: &Stored, architecture: &Architecture, capability: u32, half: u64) {
    let [inner, outer] = match capability {
        0..90 => [128, 256],
        90..100 => return,
        _ => [256, 256],
    };
    let list = parameters(architecture);
    let weighed = stored.weigh(architecture, half);
    let mut more = 0;
    for (p, weighed) in list.iter().zip(&weighed).filter(|(_, weighed)| weighed.layout.is_some()) {
        let [_, a, b] = *p.shape.as_slice() else { continue };
        // Of gate and up the inner size counts twice; the hidden size is the other side.
        let pair = p.name.contains("gate_up");
        let (hidden, size) = if pair { (a, b / 2) } else { (b, a) };
        let padded = size.next_multiple_of(inner) as f64 * hidden.next_multiple_of(outer) as f64;
        more += (weighed.bytes() as f64 * (padded / (size * hidden) as f64 - 1.0)) as u64;
    }
    if more > 0 {
        beside.held += more;
        beside.notes.push(format!(
            "the kernels for MXFP4 on this card want sides that are multiples of {inner}: the experts are padded by {}",
            gapless_trace::Bytes(more)
        ));
    }
}

/// Bytes that an engine with latent attention adds for a layer: the products of the projections that it absorbs, in
/// the model's own type, beside the projection as stored.
#[must_use]
pub fn absorbed(architecture: &Architecture, half: u64) -> u64 {
    let Architecture::Decoder(d) = architecture else { return 0 };
    d.mla.as_ref().map_or(0, |mla| d.layers * d.heads * (mla.nope_dim + mla.value_dim) * mla.kv_rank * half)
}
