//! The choice of instructions. All paths write the same bytes.

use super::{Fault, Rows, plain};
use crate::quantize::scheme::Scheme;

#[cfg(target_arch = "x86_64")]
use super::{
    avx2::Avx2,
    avx512::Avx512,
    codes::{E2m1, E2m1Power, E4m3, Int4, Int8},
    vector::{self, ByBlock, ByGroup, ByRow, Task, Way},
};

/// A type of weights that every path takes.
#[cfg(target_arch = "x86_64")]
pub(super) use super::codes::Wide as Vectored;
#[cfg(not(target_arch = "x86_64"))]
pub(super) use crate::quantize::number::Value as Vectored;

/// The instructions that quantise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Path {
    /// Any processor.
    Plain,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 BW too.
    Avx512,
}

impl Path {
    /// The fastest path that this processor can run.
    pub(super) fn best() -> Path {
        [Path::Avx512, Path::Avx2].into_iter().find(|path| path.is_there()).unwrap_or(Path::Plain)
    }

    /// True if this processor can run the path.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_there(self) -> bool {
        let has_avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        match self {
            Path::Plain => true,
            Path::Avx2 => has_avx2,
            Path::Avx512 => {
                has_avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
            }
        }
    }

    /// True if this processor can run the path.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn is_there(self) -> bool {
        self == Path::Plain
    }

    /// Appends the quantised rows of `bytes` to `out`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn rows<V: Vectored>(
        self,
        scheme: Scheme,
        bytes: &[u8],
        columns: usize,
        whole: f32,
        out: &mut Rows,
    ) -> Result<(), Fault> {
        let task = Task { scheme, bytes, columns, whole };
        match scheme {
            Scheme::Fp8 => self.by_vectors::<V, ByRow<E4m3>>(task, out),
            Scheme::W8a8 => self.by_vectors::<V, ByRow<Int8>>(task, out),
            Scheme::Fp8Block => self.by_vectors::<V, ByBlock>(task, out),
            Scheme::W4a16 => self.by_vectors::<V, ByGroup<Int4, 128>>(task, out),
            Scheme::Mxfp4 => self.by_vectors::<V, ByGroup<E2m1Power, 32>>(task, out),
            Scheme::Nvfp4 => self.by_vectors::<V, ByGroup<E2m1, 16>>(task, out),
            Scheme::Sparse24 | Scheme::SparseBitmask => Ok(()),
        }
    }

    /// Each scheme has its own function, because one for all would run out of registers.
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    fn by_vectors<V: Vectored, W: Way>(self, task: Task<'_>, out: &mut Rows) -> Result<(), Fault> {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn by_avx2<V: Vectored, W: Way>(task: Task<'_>, out: &mut Rows) -> Result<(), Fault> {
            W::rows::<Avx2, V>(task, out)
        }
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw")]
        fn by_avx512<V: Vectored, W: Way>(task: Task<'_>, out: &mut Rows) -> Result<(), Fault> {
            W::rows::<Avx512, V>(task, out)
        }
        match self {
            // SAFETY: `is_there` has found every feature that the function requires.
            Path::Avx512 if self.is_there() => unsafe { by_avx512::<V, W>(task, out) },
            // SAFETY: `is_there` has found every feature that the function requires.
            Path::Avx2 if self.is_there() => unsafe { by_avx2::<V, W>(task, out) },
            _ => plain::rows::<V>(task.scheme, task.bytes, task.columns, task.whole, out),
        }
    }

    /// The largest magnitude of the values in `bytes`.
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    pub(super) fn largest<V: Vectored>(self, bytes: &[u8]) -> Result<f32, Fault> {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn by_avx2<V: Vectored>(bytes: &[u8]) -> Result<f32, Fault> {
            vector::largest::<Avx2, V>(bytes)
        }
        match self {
            // SAFETY: `is_there` has found every feature that the function requires.
            Path::Avx512 | Path::Avx2 if self.is_there() => unsafe { by_avx2::<V>(bytes) },
            _ => plain::largest::<V>(bytes),
        }
    }

    /// Appends the quantised rows of `bytes` to `out`.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn rows<V: Vectored>(
        self,
        scheme: Scheme,
        bytes: &[u8],
        columns: usize,
        whole: f32,
        out: &mut Rows,
    ) -> Result<(), Fault> {
        plain::rows::<V>(scheme, bytes, columns, whole, out)
    }

    /// The largest magnitude of the values in `bytes`.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn largest<V: Vectored>(self, bytes: &[u8]) -> Result<f32, Fault> {
        plain::largest::<V>(bytes)
    }
}
