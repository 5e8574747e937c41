//! Saved states of private pools, which torch.compile's cudagraph trees restore.
//!
//! PyTorch holds a state as a shared pointer to a class that has only a destructor. The object and its counts are made
//! here, with tables of their own. C++ only counts, and asks for the object's type, which it does not know.

use super::layout::{CUDA, CheckpointDelta, DataPtr, Device, MempoolId};
use super::memory::{delete, on_card};
use super::{This, answer, refuse};
use crate::cxx::{Control, ControlTable, CxxVec, SharedPtr, find};
use crate::exception::Kind;
use crate::history;
use crate::watcher::Caller;
use gapless_cuda::locks::SetOnce;
use gapless_pool::{PoolKey, RestoreError, Saved};
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::AtomicI32;

/// `std::type_info` of a class without bases.
#[repr(C)]
struct TypeInfo {
    table: *const c_void,
    name: *const c_char,
}

/// The table of a state: the offset of the object, its type, its destructors.
#[repr(C)]
struct StateTable {
    offset: isize,
    type_info: *const TypeInfo,
    destructors: [unsafe extern "C" fn(*mut c_void); 2],
}

// SAFETY: it has constants and addresses of code. `state_table` makes the only one, which is never freed.
unsafe impl Send for StateTable {}
// SAFETY: it has constants and addresses of code, and no thread writes to it.
unsafe impl Sync for StateTable {}

/// A state with its counts.
#[repr(C)]
struct Kept {
    control: Control,
    /// The beginning of the object for PyTorch: its table. Our data follow.
    table: *const c_void,
    pool: PoolKey,
    saved: Vec<Saved>,
}

const TYPE_NAME: &CStr = c"N7gapless9PoolStateE";

/// C++ never destroys the object itself: the counts do.
unsafe extern "C" fn nothing(_: *mut c_void) {}

/// Called when no use is left: frees the saved data.
unsafe extern "C" fn dispose(control: *mut Control) {
    // SAFETY: the counts are the first field of a `Kept`, which `destroy` frees after this.
    unsafe { (*control.cast::<Kept>()).saved = Vec::new() };
}

unsafe extern "C" fn destroy(control: *mut Control) {
    // SAFETY: `shared` made it as a box, and with the last weak use no pointer to it is left.
    drop(unsafe { Box::from_raw(control.cast::<Kept>()) });
}

static CONTROL: ControlTable = ControlTable::new(dispose, destroy);

/// The table of states; `None` if this C++ library has no classes.
fn state_table() -> Option<*const c_void> {
    static TABLE: SetOnce<Option<&'static StateTable>> = SetOnce::new();
    let table = TABLE.get_or_init(|| {
        let class = find(&[c"libstdc++.so.6"], c"_ZTVN10__cxxabiv117__class_type_infoE")?;
        // SAFETY: a table's functions begin after its two header words.
        let class = unsafe { class.cast::<*const c_void>().add(2) }.cast_const().cast();
        let type_info = Box::leak(Box::new(TypeInfo { table: class, name: TYPE_NAME.as_ptr() }));
        Some(Box::leak(Box::new(StateTable { offset: 0, type_info, destructors: [nothing; 2] })))
    });
    table.map(|table| (&raw const table.destructors).cast())
}

fn shared(pool: PoolKey, saved: Vec<Saved>) -> Option<SharedPtr> {
    let control = Control { table: &CONTROL, uses: AtomicI32::new(1), weak: AtomicI32::new(1) };
    let kept = Box::into_raw(Box::new(Kept { control, table: state_table()?, pool, saved }));
    // SAFETY: the box was made just now.
    let object = unsafe { (&raw mut (*kept).table).cast() };
    Some(SharedPtr { object, control: kept.cast() })
}

/// `getCheckpointState(device, pool)`.
pub(super) unsafe extern "C-unwind" fn save(
    out: *mut SharedPtr,
    _: This,
    device: i8,
    id: MempoolId,
) -> *mut SharedPtr {
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked. `out` is its place for the result.
    unsafe {
        let state = answer(SharedPtr::NULL, || {
            let pool = PoolKey::from(id);
            let saved = on_card(device, |card| card.uses_of(pool).map(|uses| (uses, card.pool.save(pool))))?;
            match saved {
                None => refuse("Could not find pool of id"),
                Some((0, _)) => refuse("Not expected to checkpoint freeable graph"),
                Some((_, saved)) => match shared(pool, saved) {
                    Some(state) => Ok(state),
                    None => refuse("gapless: this C++ library cannot hold the state of a pool"),
                },
            }
        });
        out.write(state);
    }
    out
}

/// `setCheckpointPoolState(device, state)`: returns the freed blocks, and the blocks that are live again.
pub(super) unsafe extern "C-unwind" fn restore(
    out: *mut CheckpointDelta,
    _: This,
    device: i8,
    state: *const SharedPtr,
) -> *mut CheckpointDelta {
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked. `out` is its place for the result, and
    // `state` a live shared pointer, whose object is ours if its table is.
    unsafe {
        let (freed, live) = answer((Vec::new(), Vec::new()), || {
            let SharedPtr { object, control } = &*state;
            let ours = !object.is_null()
                && Some(object.cast::<*const c_void>().read()) == state_table()
                && std::ptr::eq((**control).table, &CONTROL);
            if !ours {
                return refuse("Expected the state of a pool of this allocator");
            }
            let kept = &*control.cast::<Kept>();
            let restored = on_card(device, |card| {
                let asleep: Vec<u64> = kept
                    .saved
                    .iter()
                    .map(|saved| saved.addr)
                    .filter(|&addr| !card.pool.is_live(addr))
                    .collect();
                let restored = card.pool.restore(kept.pool, &kept.saved);
                card.tell_changes(&Caller::NOBODY);
                card.tell_restored(asleep.into_iter());
                restored
            })?;
            match restored {
                Ok(freed) => Ok((freed, kept.saved.iter().map(|saved| saved.addr).collect())),
                Err(RestoreError::Gone { addr }) => {
                    let message = format!("the memory at {addr:#x} that the state needs was given back");
                    Err((Kind::Error, message))
                }
                Err(RestoreError::Pending { addr }) => {
                    let message =
                        format!("Events should have synchronized when checkpointing block ({addr:#x})");
                    Err((Kind::Error, message))
                }
            }
        });
        history::tell_trackers();
        let freed = freed.into_iter().map(|addr| addr as *mut c_void).collect();
        (&raw mut (*out).freed).write(CxxVec::of(freed));
        let live: Vec<DataPtr> = live
            .into_iter()
            .map(|addr| {
                let data = addr as *mut c_void;
                DataPtr { data, deleter: delete, context: data, device: Device { kind: CUDA, index: device } }
            })
            .collect();
        (&raw mut (*out).allocated).write(CxxVec::of(live));
    }
    out
}
