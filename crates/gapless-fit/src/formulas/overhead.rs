//! Device memory of a process beside tensors, and tensors that libraries ask for.

use super::Term;

const MIB: f64 = 1_048_576.0;

/// The CUDA context, modules loaded lazily. Measured: 426 MiB on an RTX 6000 Ada with CUDA 13.0; 300 to 500 MiB
/// elsewhere, over 1 GiB without lazy loading.
#[must_use]
pub fn context(lazy: bool) -> Term {
    let mib = if lazy { 450.0 } else { 1100.0 };
    Term::bytes(
        "CUDA context",
        mib * MIB,
        "a constant of device, driver and libraries",
        &[("MiB", mib)],
        "measured; CUDA_MODULE_LOADING=LAZY",
    )
}

/// The workspace that cuBLAS asks the caching allocator for, of each handle and stream: it counts as allocated.
#[must_use]
pub fn cublas_workspace(compute_capability: u32) -> Term {
    let kib: f64 = if compute_capability == 90 { 32.0 * 1024.0 } else { 8320.0 };
    Term::bytes(
        "cuBLAS workspace",
        kib * 1024.0,
        "4096 KiB x 8 on compute capability 9.0, else 8.125 MiB (:4096:2:16:8)",
        &[("compute capability", f64::from(compute_capability) / 10.0)],
        "torch, aten/src/ATen/cuda/CublasHandlePool.cpp",
    )
}

/// Threads that have such a workspace in training: forward's, and autograd's.
pub const TRAINING_THREADS: u64 = 2;

/// NCCL's buffers of the communicators with so many ranks each.
#[must_use]
pub fn nccl(communicators: &[u64], rocm: bool) -> Term {
    let one = |&ranks: &u64| match ranks {
        0 | 1 => 0.0,
        _ if rocm => 0.65 * 1024.0,
        2 => 544e6 / MIB,
        _ => 688e6 / MIB,
    };
    let mut mib: f64 = communicators.iter().map(one).sum();
    if rocm && mib > 0.0 {
        mib += 1024.0;
    }
    Term::bytes(
        "communication buffers",
        mib * MIB,
        "544 MB a communicator of 2 ranks, 688 MB of more",
        &[("communicators", communicators.iter().filter(|&&ranks| ranks > 1).count() as f64)],
        "measured on A100 with NVLink (nccl issue 964); RCCL 1 GiB + 0.65 GiB each",
    )
}
