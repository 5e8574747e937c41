//! Memory that PyTorch keeps for itself: it asks once, and uses the memory to the end of the process.
//!
//! cuBLAS's workspaces, the seeds of graphs and cuDNN's dropout state are allocated when they are first needed. If a
//! region is open then, they must not sleep with it: a product outside of the region, or a graph of another one, would
//! write to memory that is not mapped. A request does not say its purpose. So, while a region is open, Gapless looks
//! for PyTorch's functions on the stack of a request of such a size. If it finds one, the request goes to a pool of its
//! own that never sleeps.
//!
//! A graph remembers the address of a workspace that it was captured with. So a request of a capture, or of a memory
//! pool of PyTorch's, goes to a pool beside that one ([`beside`]). That pool serves no other requests, and lives as
//! long.

use crate::cxx;
use crate::foreign;
use crate::symbols::size_of_symbol;
use gapless_cuda::locks::SetOnce;
use gapless_pool::PoolKey;
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The first half of these pools' keys: PyTorch counts its own from 0, and regions have another mark.
const MARK: u64 = 0x0074_6f72_6368_6b70;
/// The pool for requests outside of PyTorch's own pools.
const POOL: PoolKey = PoolKey(MARK, 0);

/// True if a pool is for memory that PyTorch keeps.
#[inline]
pub(crate) fn is_exempt(pool: PoolKey) -> bool {
    pool.0 == MARK
}

/// The pool for memory that PyTorch keeps, if the request would otherwise go to `pool`.
pub(crate) fn pool_for(pool: PoolKey) -> PoolKey {
    if pool.is_private() && !super::is_region(pool) { beside(pool).unwrap_or(pool) } else { POOL }
}

/// The pool beside a private one of PyTorch's, whose key has one half that is 0.
pub(crate) fn beside(pool: PoolKey) -> Option<PoolKey> {
    match pool {
        PoolKey(0, number) if number < 1 << 62 => Some(PoolKey(MARK, 2 * number + 1)),
        PoolKey(number, 0) if number < 1 << 62 => Some(PoolKey(MARK, 2 * number + 2)),
        _ => None,
    }
}

/// Size of a seed or an offset of a graph: one integer of 64 bits.
const SEED: usize = 8;
/// Frames to look through: a seed's tensor is made about twenty calls below.
const MOST_FRAMES: usize = 48;

const LIBRARIES: [&CStr; 1] = [c"libtorch_cuda.so"];
/// Functions of all known releases that allocate a workspace and keep it.
const WORKSPACES: [&CStr; 5] = [
    c"_ZN2at4cuda24getCurrentCUDABlasHandleEv",
    c"_ZN2at4cuda24getCurrentCUDABlasHandleEb",
    c"_ZN2at4cuda37getCurrentCUDABlasHandleWithWorkspaceEv",
    c"_ZN2at4cuda22getCUDABlasLtWorkspaceEv",
    c"_ZN2at4cuda22getCUDABlasLtWorkspaceEm",
];
/// Functions that allocate seeds and keep them: seeds are made for the first graph and serve all others.
const SEEDS: [&CStr; 4] = [
    c"_ZN2at17CUDAGeneratorImpl14register_graphEPNS_4cuda9CUDAGraphE",
    c"_ZN2at4cuda9CUDAGraph24register_generator_stateERKNS_9GeneratorE",
    c"_ZN2at4cuda9CUDAGraph24register_generator_stateEN3c1013intrusive_ptrINS_18CUDAGeneratorStateENS2_6detail34intrusive_target_default_null_typeIS4_EEEE",
    c"_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode",
];

/// The function that allocates the dropout state of cuDNN's recurrent networks, once a card. cuDNN determines its size.
const DROPOUT: [&CStr; 1] = [
    c"_ZN2at6native25_cudnn_init_dropout_stateEdblSt8optionalIN3c1010ScalarTypeEES1_INS2_6LayoutEES1_INS2_6DeviceEES1_IbE",
];
/// The least size of such a state: cuDNN keeps one for each thread of a card.
const LEAST_STATE: usize = 64 << 10;

/// Sizes whose last request was not for a state: they are not checked again, because that takes longer than a request.
static OTHER_SIZES: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];

fn is_dropout_state(size: usize) -> bool {
    static DROPPING: SetOnce<Vec<Range<usize>>> = SetOnce::new();
    let place = (size >> 9).wrapping_mul(0x9e37_79b9) >> 8;
    let seen = &OTHER_SIZES[place % OTHER_SIZES.len()];
    if size < LEAST_STATE || seen.load(Ordering::Relaxed) == size {
        return false;
    }
    let is_state = comes_through(DROPPING.get_or_init(|| addresses(&DROPOUT)));
    if !is_state {
        seen.store(size, Ordering::Relaxed);
    }
    is_state
}

/// True if this request, made while a region is open, is for memory that PyTorch keeps.
///
/// # Safety
/// C++ exceptions may pass the callers: no guard, and no card locked.
#[cold]
pub(super) unsafe fn is_for_torch(size: usize) -> bool {
    static WORKSPACE: SetOnce<Vec<Range<usize>>> = SetOnce::new();
    static SEEDED: SetOnce<Vec<Range<usize>>> = SetOnce::new();
    if size == SEED {
        return comes_through(SEEDED.get_or_init(|| addresses(&SEEDS)));
    }
    // SAFETY: our caller lets exceptions pass, and no card is locked here.
    let may_be = unsafe { foreign::is_workspace_size(size) };
    (may_be && comes_through(WORKSPACE.get_or_init(|| addresses(&WORKSPACES)))) || is_dropout_state(size)
}

/// Address ranges of these functions, as far as this build of PyTorch exports them.
fn addresses(names: &[&CStr]) -> Vec<Range<usize>> {
    names.iter().filter_map(|name| code(cxx::find(&LIBRARIES, name)?)).collect()
}

/// The callback of the unwinder for each frame; it returns 0 to go on.
type Visit = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

unsafe extern "C" {
    fn _Unwind_Backtrace(visit: Visit, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

fn code(function: *mut c_void) -> Option<Range<usize>> {
    let (start, size) = (function as usize, size_of_symbol(function)?);
    Some(start..start.saturating_add(size))
}

struct Search<'a> {
    among: &'a [Range<usize>],
    left: usize,
    is_found: bool,
}

/// True if this thread is inside of one of these functions.
fn comes_through(among: &[Range<usize>]) -> bool {
    let mut search = Search { among, left: MOST_FRAMES, is_found: false };
    if !among.is_empty() {
        // SAFETY: the unwinder passes our search to `visit` and returns before the search ends.
        unsafe { _Unwind_Backtrace(visit, (&raw mut search).cast()) };
    }
    search.is_found
}

unsafe extern "C" fn visit(frame: *mut c_void, search: *mut c_void) -> c_int {
    // SAFETY: `comes_through` passed its own search, which nothing else uses meanwhile; the frame is the unwinder's.
    let (search, at) = unsafe { (&mut *search.cast::<Search<'_>>(), _Unwind_GetIP(frame)) };
    // A return address lies behind its call, which may be the last instruction of a function.
    let call = at.wrapping_sub(1);
    search.is_found = search.among.iter().any(|code| code.contains(&call));
    search.left -= 1;
    c_int::from(search.is_found || search.left == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function whose code range a test knows only by its address.
    #[inline(never)]
    extern "C" fn below(among: *const Vec<Range<usize>>) -> bool {
        // SAFETY: the test's vector lives until this call returns.
        let found = comes_through(unsafe { &*among });
        std::hint::black_box(found)
    }

    #[test]
    fn a_thread_knows_the_functions_that_it_is_in() {
        let start = below as *const () as usize;
        let inside = vec![1..2, start..start + 512];
        assert!(below(&raw const inside));
        let elsewhere = vec![1..2, 3..4];
        assert!(!below(&raw const elsewhere));
        let none = Vec::new();
        assert!(!below(&raw const none));
    }

    #[test]
    fn each_pool_of_torchs_has_its_own_beside_it() {
        let pools =
            [PoolKey(0, 0), PoolKey(super::super::MARK, 7), PoolKey(0, 1), PoolKey(1, 0), PoolKey(0, 2)];
        let beside = pools.map(pool_for);
        assert_eq!(beside[0], beside[1], "requests outside of PyTorch's pools share one");
        let distinct: std::collections::BTreeSet<PoolKey> = beside[1..].iter().copied().collect();
        assert_eq!(distinct.len(), 4);
        assert!(beside.iter().all(|pool| is_exempt(*pool)));
        assert_eq!(pool_for(PoolKey(5, 6)), PoolKey(5, 6), "no pool of PyTorch's has such a number");
    }

    #[test]
    fn the_loader_tells_how_long_a_function_is() {
        let malloc = cxx::find(&[c"libc.so.6"], c"malloc").expect("the C library has it");
        let code = code(malloc).expect("and says its size");
        assert!(code.len() > 8 && code.len() < 1 << 20, "{code:?}");
        assert_eq!(code.start, malloc as usize);
    }
}
