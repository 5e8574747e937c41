//! Memory of one card used by another, through the table.
//!
//! Memory that is mapped has to be granted to each card that uses it; CUDA's own switch for peers does not reach it. So
//! a card's memory is granted to another when PyTorch enables that, all that is there and all that comes. Where it
//! never does, copies take the way that needs no grant.

use super::memory::on_card;
use super::{C10_CUDA, This, answer, refuse};
use crate::cxx::find_global;
use crate::foreign;
use gapless_cuda::locks::SetOnce;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

type CopyPeer = unsafe extern "C" fn(*mut c_void, i32, *const c_void, i32, usize, *mut c_void) -> i32;
type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize, i32, *mut c_void) -> i32;

/// What PyTorch's plug-in does when peers are enabled.
static ENABLE: AtomicUsize = AtomicUsize::new(0);

pub(super) fn prepare(enable: usize) {
    ENABLE.store(enable, Ordering::Relaxed);
}

/// `enablePeerAccess(user, owner)`: the card `user` uses memory of the card `owner` from now on.
pub(super) unsafe extern "C-unwind" fn enable(this: This, user: i8, owner: i8) {
    // SAFETY: C++ called, and may be thrown through; the function is the one that stood in this place of the table.
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

/// The runtime's copies, through the library that links to it, whichever version of it that is.
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

/// `memcpyAsync(to, card, from, card, bytes, stream, whether peers are enabled)`.
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
    // SAFETY: the caller's own arguments, to the functions that PyTorch's allocators call with them.
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
