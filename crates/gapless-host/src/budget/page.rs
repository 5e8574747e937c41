//! The page that relatives share: a total, and a slot with the part of each process.
//!
//! The kernel shows if the process of a slot is alive: a thread of the process holds a robust mutex in the slot, and
//! the kernel marks the mutex when the process ends in any way, or becomes another program. No process numbers are
//! compared, so namespaces of process numbers, and numbers that are used again, do no harm. If the kernel keeps no list
//! of robust mutexes (an emulator), a process of the same namespace is looked up by its number.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys;

/// The number of processes with a slot. The memory of further ones counts in the total, and is not returned if they are
/// killed.
pub(super) const SLOTS: usize = 4095;
/// Marks a file as a budget of this version.
pub(super) const MARK: u64 = u64::from_le_bytes(*b"GAPLHST2");

#[repr(C)]
pub(super) struct Shared {
    pub(super) mark: AtomicU64,
    pub(super) total: AtomicU64,
    /// Counts requests that need memory that other processes keep.
    pub(super) wanted: AtomicU64,
    /// Counts slots that were taken, which gives each owner its number.
    tickets: AtomicU64,
    /// Slots from here on were never taken.
    top: AtomicU64,
    slots: [Slot; SLOTS],
}

/// Bytes of the shared page.
pub const BYTES: usize = size_of::<Shared>();

#[repr(C, align(128))]
pub(super) struct Slot {
    state: AtomicU32,
    /// MiB that the process keeps for reuse, updated about twice a second.
    pub(super) kept: AtomicU32,
    /// The number of the slot's owner. A process that finds another number has lost its slot.
    ticket: AtomicU64,
    pub(super) held: AtomicU64,
    /// The namespace and the number of the process.
    namespace: AtomicU64,
    pid: AtomicU32,
    life: Life,
}

const FREE: u32 = 0;
/// While it is being taken or emptied.
const BUSY: u32 = 1;
const TAKEN: u32 = 2;

impl Shared {
    /// True if a process wanted memory since `seen` was updated.
    pub(super) fn is_wanted(&self, seen: &AtomicU64) -> bool {
        let wanted = self.wanted.load(Ordering::Acquire);
        seen.swap(wanted, Ordering::Relaxed) != wanted
    }

    /// Slots that may have an owner.
    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots[..(self.top.load(Ordering::Acquire) as usize).min(SLOTS)]
    }

    /// Returns the parts of ended processes. True if there were any. With `asks`, processes may be looked up by number.
    pub(super) fn reap(&self, asks: bool) -> bool {
        self.reap_in(if asks { namespace() } else { 0 }, 0)
    }

    /// `here` is the namespace whose processes may be looked up by number, or 0. Slots with the number `former` belong
    /// to a program that is gone.
    fn reap_in(&self, here: u64, former: u32) -> bool {
        let mut found = false;
        for slot in self.slots() {
            if !slot.is_gone(here, former) || !slot.turn(TAKEN, BUSY) {
                continue;
            }
            // Another process may have emptied it in between, and a new one may have it now.
            if slot.has_ended(here, former) {
                self.empty(slot);
                found = true;
            } else {
                slot.state.store(TAKEN, Ordering::Release);
            }
        }
        found
    }

    /// Takes a slot for this process. Returns it with its ticket. `head`: see [`Head`].
    pub(super) fn take(&self, head: &Head) -> Option<(&Slot, u64)> {
        // Memory that this process held before it became another program (`exec`) is gone.
        let here = namespace();
        self.reap_in(here, sys::pid());
        let (at, slot) = self.slots.iter().enumerate().find(|(_, slot)| slot.turn(FREE, BUSY))?;
        slot.held.store(0, Ordering::Relaxed);
        slot.kept.store(0, Ordering::Relaxed);
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed) + 1;
        slot.ticket.store(ticket, Ordering::Relaxed);
        slot.namespace.store(here, Ordering::Relaxed);
        slot.pid.store(sys::pid(), Ordering::Relaxed);
        slot.life.begin(head);
        self.top.fetch_max(at as u64 + 1, Ordering::AcqRel);
        slot.state.store(TAKEN, Ordering::Release);
        Some((slot, ticket))
    }

    /// Empties the slot of a process that ends. While a thread has its mutex, no other process may take the slot,
    /// because the kernel looks there at the thread's end.
    pub(super) fn leave(&self, slot: &Slot) {
        if slot.life.end() && slot.turn(TAKEN, BUSY) {
            self.empty(slot);
        } else {
            self.total.fetch_sub(slot.held.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        }
    }

    fn empty(&self, slot: &Slot) {
        let held = slot.held.swap(0, Ordering::AcqRel);
        self.total.fetch_sub(held, Ordering::AcqRel);
        slot.ticket.store(0, Ordering::Relaxed);
        slot.state.store(FREE, Ordering::Release);
    }
}

impl Slot {
    fn turn(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// True if the process with this ticket has the slot.
    pub(super) fn is_of(&self, ticket: u64) -> bool {
        self.ticket.load(Ordering::Relaxed) == ticket
    }

    /// True if a process has the slot and keeps memory for reuse.
    pub(super) fn keeps(&self) -> bool {
        self.state.load(Ordering::Relaxed) == TAKEN && self.kept.load(Ordering::Relaxed) > 0
    }

    /// True if the thread that held the mutex has ended.
    pub(super) fn is_orphan(&self) -> bool {
        self.life.word().load(Ordering::Relaxed) & OWNER == 0
    }

    /// Lets this thread hold the mutex from now on.
    pub(super) fn adopt(&self) {
        self.life.adopt();
    }

    /// Called when this thread ends, while the process may go on.
    pub(super) fn orphan(&self) {
        let _ = self.life.end();
    }

    fn is_gone(&self, here: u64, former: u32) -> bool {
        self.state.load(Ordering::Acquire) == TAKEN && self.has_ended(here, former)
    }

    /// True if the process that last took the slot has ended.
    fn has_ended(&self, here: u64, former: u32) -> bool {
        if self.life.word().load(Ordering::Acquire) & DIED != 0 {
            return true;
        }
        let pid = self.pid.load(Ordering::Relaxed);
        let is_unknown = || {
            // SAFETY: signal 0 is not sent, only checked.
            sys::keep_errno(|| unsafe { libc::kill(pid as i32, 0) } != 0 && sys::errno() == libc::ESRCH)
        };
        here != 0 && self.namespace.load(Ordering::Relaxed) == here && (pid == former || is_unknown())
    }
}

/// This process's namespace of process numbers; 0 if processes cannot be looked up by number.
fn namespace() -> u64 {
    if gapless_aside::is_confined() {
        return 0;
    }
    sys::keep_errno(|| sys::FileId::behind(c"/proc/self/ns/pid")).map_or(0, |id| id.inode())
}

/// A robust mutex that a thread of the process holds while the process lives.
///
/// The thread's list of such mutexes belongs to the C library, which registers it with the kernel. A child of the bare
/// system call has no such list, so its first thread registers [`Head`].
#[repr(C)]
struct Life {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    node: UnsafeCell<usize>,
}

/// The mutex's word: the number of the thread that holds it, and a mark that this thread ended.
const OWNER: u32 = 0x3fff_ffff;
const DIED: u32 = 0x4000_0000;

/// A list of robust mutexes as the kernel reads it, with one entry.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Head {
    first: UnsafeCell<usize>,
    offset: UnsafeCell<isize>,
    pending: UnsafeCell<usize>,
}

unsafe extern "C" {
    fn pthread_mutexattr_setrobust(attributes: *mut libc::pthread_mutexattr_t, robust: c_int) -> c_int;
    fn pthread_mutex_consistent(mutex: *mut libc::pthread_mutex_t) -> c_int;
}

impl Life {
    /// The C library keeps the owner in the first word.
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the first word of the mutex, which is changed with atomic operations only.
        unsafe { AtomicU32::from_ptr(self.mutex.get().cast()) }
    }

    /// Makes the mutex. Meanwhile no other process uses the slot.
    fn begin(&self, head: &Head) {
        const ROBUST: c_int = 1;
        // SAFETY: no thread has the mutex, because the slot is being taken; `attributes` is a local variable.
        unsafe {
            self.mutex.get().write_bytes(0, 1);
            let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
            pthread_mutexattr_setrobust(&raw mut attributes, ROBUST);
            libc::pthread_mutex_init(self.mutex.get(), &raw const attributes);
            libc::pthread_mutexattr_destroy(&raw mut attributes);
        }
        if has_list() {
            self.adopt();
            return;
        }
        // SAFETY: the node and the head belong to this process alone; the head lives as long as the process.
        unsafe {
            let node = self.node.get();
            node.write(head.first.get() as usize);
            head.offset.get().write(offset_of!(Life, mutex) as isize - offset_of!(Life, node) as isize);
            head.pending.get().write(0);
            head.first.get().write(node as usize);
            self.word().store(libc::syscall(libc::SYS_gettid) as u32, Ordering::Release);
            libc::syscall(libc::SYS_set_robust_list, std::ptr::from_ref(head), size_of::<Head>());
        }
    }

    fn adopt(&self) {
        // SAFETY: `begin` made the mutex. Another thread of the process may have it by now, which is as good.
        unsafe {
            if libc::pthread_mutex_trylock(self.mutex.get()) == libc::EOWNERDEAD {
                pthread_mutex_consistent(self.mutex.get());
            }
        }
    }

    /// Unlocks the mutex if this thread has it. True if no thread has it now.
    fn end(&self) -> bool {
        // SAFETY: `begin` made the mutex. The C library refuses to unlock it for a thread that does not have it.
        let _ = unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
        self.word().load(Ordering::Acquire) & OWNER == 0
    }
}

/// True if the kernel knows a list of robust mutexes of this thread.
fn has_list() -> bool {
    let (mut head, mut length) = (0usize, 0usize);
    // SAFETY: both are valid for writing.
    let result = sys::keep_errno(|| unsafe {
        libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut length)
    });
    // A kernel without this call is assumed to have one.
    result != 0 || head != 0
}
