//! The instructions that a codec uses. All paths write the same bytes and read the same values.

/// The instructions that a codec uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// Any processor.
    Portable,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX-512 VBMI2 (Ice Lake, Zen 4 and later).
    Avx512,
}

impl Path {
    /// The fastest path that this processor can run.
    pub fn best() -> Path {
        [Path::Avx512, Path::Avx2].into_iter().find(|path| path.is_there()).unwrap_or(Path::Portable)
    }

    /// Every path that this processor can run.
    pub fn all() -> Vec<Path> {
        [Path::Portable, Path::Avx2, Path::Avx512].into_iter().filter(|path| path.is_there()).collect()
    }

    /// True if this processor can run the path.
    #[cfg(target_arch = "x86_64")]
    pub fn is_there(self) -> bool {
        let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt");
        match self {
            Path::Portable => true,
            Path::Avx2 => has_avx2,
            Path::Avx512 => {
                has_avx2
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
                    && is_x86_feature_detected!("avx512vbmi2")
            }
        }
    }

    /// True if this processor can run the path.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_there(self) -> bool {
        self == Path::Portable
    }

    /// The path itself if this processor can run it, else the portable one. The vector code relies on this check.
    pub(super) fn checked(self) -> Path {
        if self.is_there() { self } else { Path::Portable }
    }
}
