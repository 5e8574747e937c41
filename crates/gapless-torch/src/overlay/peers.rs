//! Use of one card's memory by another, through the table.
//!
//! Mapped memory must be granted to each card that uses it; CUDA's own switch for peers does not cover it. So when
//! PyTorch enables peers, a card's memory is granted to the other: all that exists, and all that comes. If PyTorch
//! never enables them, copies work without a grant.

use super::memory::on_card;
use super::{C10_CUDA, This, answer, refuse};
use crate::cxx::find_global;
use crate::foreign;
use gapless_cuda::locks::SetOnce;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

type CopyPeer = unsafe extern "C" fn(*mut c_void, i32, *const c_void, i32, usize, *mut c_void) -> i32;
type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize, i32, *mut c_void) -> i32;

/// The function of PyTorch's plug-in that enables peers.
static ENABLE: AtomicUsize = AtomicUsize::new(0);

pub(super) fn prepare(enable: usize) {
    ENABLE.store(enable, Ordering::Relaxed);
}

/// `enablePeerAccess(user, owner)`: the card `user` uses memory of the card `owner` from now on.
pub(super) unsafe extern "C-unwind" fn enable(this: This, user: i8, owner: i8) {
    // SAFETY: PyTorch's C++ called and handles exceptions. The function is the one that was in this place of the table.
    unsafe {
        answer((), || {
            let granted = on_card(owner, |card| card.add_peer(i32::from(user)))?;
            granted.or_else(|error| {
                refuse(format!("gapless: memory of card {owner} cannot be used by card {user}: {error:?}"))
            })
        });
        let enable = ENABLE.load(Ordering::Relaxed);
        if enable != 0 {
            foreign::enable_peer(enable, this, user, owner);
        }
    }
}

/// The runtime's copy functions, from the library that links to it, in whichever version.
fn copies() -> (Option<CopyPeer>, Option<Copy>) {
    static FOUND: SetOnce<(Option<CopyPeer>, Option<Copy>)> = SetOnce::new();
    *FOUND.get_or_init(|| {
        let (peer, plain) =
            (find_global(&C10_CUDA, c"cudaMemcpyPeerAsync"), find_global(&C10_CUDA, c"cudaMemcpyAsync"));
        // SAFETY: these names have these types in CUDA's headers.
        unsafe {
            (
                peer.map(|f| std::mem::transmute::<*mut c_void, CopyPeer>(f)),
                plain.map(|f| std::mem::transmute::<*mut c_void, Copy>(f)),
            )
        }
    })
}

const DEVICE_TO_DEVICE: i32 = 3;
const NOT_SUPPORTED: i32 = 801;

/// `memcpyAsync(to, card, from, card, bytes, stream, peers enabled)`.
pub(super) unsafe extern "C-unwind" fn memcpy(
    _: This,
    to: *mut c_void,
    to_device: i32,
    from: *const c_void,
    from_device: i32,
    count: usize,
    stream: *mut c_void,
    peers: bool,
) -> i32 {
    // SAFETY: PyTorch's own arguments, for the functions to which its allocators pass them.
    unsafe {
        match copies() {
            (Some(copy), _) if to_device != from_device && !peers => {
                copy(to, to_device, from, from_device, count, stream)
            }
            (_, Some(copy)) => copy(to, from, count, DEVICE_TO_DEVICE, stream),
            _ => NOT_SUPPORTED,
        }
    }
}
