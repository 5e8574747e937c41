//! Estimated costs of device calls, so that runs can be compared by more than bytes: measured on one NVIDIA H200
//! (driver 580, CUDA 13.0), in nanoseconds. For other cards they are estimates, and every text that shows them says so.

const MIB: u64 = 1 << 20;

/// `cudaMalloc` of `bytes`.
#[must_use]
pub fn malloc(bytes: u64) -> u64 {
    // 450 us at 2 MiB (the driver sets up a new slab), 86 at 20 MiB, 148 at 512 MiB.
    if bytes <= 2 * MIB { 450_000 } else { 86_000 + bytes.saturating_sub(20 * MIB) / MIB * 126 }
}

/// `cudaFree` of `bytes` on an idle device: running kernels are waited for on top of it.
#[must_use]
pub fn free(bytes: u64) -> u64 {
    if bytes <= 2 * MIB { 120_000 } else { 59_000 + bytes.saturating_sub(20 * MIB) / MIB * 482 }
}

/// Creating, mapping and giving access to `handles` physical handles.
#[must_use]
pub fn map(handles: u64) -> u64 {
    handles * (14_000 + 1_200 + 31_000)
}

/// Unmapping and releasing `handles` physical handles.
#[must_use]
pub fn unmap(handles: u64) -> u64 {
    handles * 22_000
}
