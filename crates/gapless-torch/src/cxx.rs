//! Objects of the C++ library as PyTorch's x86-64 Linux builds lay them out (libstdc++, strings since GCC 5): only
//! those that are passed to or from PyTorch.
//!
//! Memory that C++ frees comes from its own `operator new`. Objects that point into themselves (strings, maps) are
//! built at their final address.

use crate::foreign::{self, Invoker, Manager, New};
use gapless_cuda::locks::SetOnce;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;
const RTLD_NOLOAD: c_int = 4;

/// A symbol of one of these libraries, if they are loaded already.
#[must_use]
pub fn find(libraries: &[&CStr], name: &CStr) -> Option<*mut c_void> {
    libraries.iter().find_map(|library| {
        // SAFETY: the names end with NUL, and `RTLD_NOLOAD` loads nothing.
        let symbol = unsafe {
            let library = dlopen(library.as_ptr(), RTLD_NOW | RTLD_NOLOAD);
            if library.is_null() {
                return None;
            }
            dlsym(library, name.as_ptr())
        };
        (!symbol.is_null()).then_some(symbol)
    })
}

/// A symbol as the program's own libraries see it: a preloaded library takes precedence over what these depend on.
#[must_use]
pub fn find_global(libraries: &[&CStr], name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with NUL; a null handle means the default search.
    let symbol = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    if symbol.is_null() { find(libraries, name) } else { Some(symbol) }
}

type Delete = unsafe extern "C" fn(*mut c_void);
type HashBytes = unsafe extern "C" fn(*const c_void, usize, usize) -> usize;

/// The functions of the C++ library that we call.
struct Library {
    new: New,
    delete: Delete,
    hash: HashBytes,
}

fn library() -> Option<&'static Library> {
    static FOUND: SetOnce<Option<Library>> = SetOnce::new();
    FOUND
        .get_or_init(|| {
            let cxx = [c"libstdc++.so.6"];
            let (new, delete) = (find_global(&cxx, c"_Znwm")?, find_global(&cxx, c"_ZdlPv")?);
            let hash = find_global(&cxx, c"_ZSt11_Hash_bytesPKvmm")?;
            // SAFETY: these names have these types in the C++ ABI.
            Some(unsafe {
                Library {
                    new: std::mem::transmute::<*mut c_void, New>(new),
                    delete: std::mem::transmute::<*mut c_void, Delete>(delete),
                    hash: std::mem::transmute::<*mut c_void, HashBytes>(hash),
                }
            })
        })
        .as_ref()
}

/// True if C++ objects can be built in this process.
#[must_use]
pub fn is_available() -> bool {
    library().is_some()
}

/// Memory that C++ frees.
fn new_bytes(size: usize) -> *mut u8 {
    // Objects are built only after `is_available` returned true.
    let Some(library) = library() else { std::process::abort() };
    // SAFETY: `library` found operator new, and objects are built only if C++ exceptions may pass (see the
    // builders).
    unsafe { foreign::new_bytes(library.new, size) }
}

/// `std::vector`.
#[repr(C)]
#[derive(Debug)]
pub struct CxxVec<T> {
    begin: *mut T,
    end: *mut T,
    room: *mut T,
}

impl<T> CxxVec<T> {
    /// An empty vector.
    pub const EMPTY: CxxVec<T> =
        CxxVec { begin: std::ptr::null_mut(), end: std::ptr::null_mut(), room: std::ptr::null_mut() };

    /// A vector of `items`, each of which `build` makes in its place.
    ///
    /// # Safety
    /// `build` initialises its place. C++ exceptions may pass the callers. The receiver frees the vector: we never do.
    pub unsafe fn build<I>(
        items: impl ExactSizeIterator<Item = I>,
        build: impl FnMut(*mut T, I),
    ) -> CxxVec<T> {
        // SAFETY: `build` initialises a place of `T`'s size, which is the stride.
        unsafe { CxxVec::build_with_stride(items, size_of::<T>(), build) }
    }

    /// [`CxxVec::build`] for a C++ type that is longer than `T`: an item takes `stride` bytes, and `build` makes all of
    /// it.
    ///
    /// # Safety
    /// As [`CxxVec::build`]; `stride` is at least the size of `T`, and keeps its alignment.
    pub unsafe fn build_with_stride<I>(
        items: impl ExactSizeIterator<Item = I>,
        stride: usize,
        mut build: impl FnMut(*mut T, I),
    ) -> CxxVec<T> {
        let count = items.len();
        if count == 0 {
            return CxxVec::EMPTY;
        }
        let begin: *mut T = new_bytes(count * stride).cast();
        let mut end = begin;
        for item in items.take(count) {
            build(end, item);
            // SAFETY: within the `count * stride` bytes that were allocated.
            end = unsafe { end.byte_add(stride) };
        }
        // SAFETY: the end of the `count * stride` bytes that were allocated.
        CxxVec { begin, end, room: unsafe { begin.byte_add(count * stride) } }
    }

    /// # Safety
    /// As [`CxxVec::build`].
    pub unsafe fn of(items: Vec<T>) -> CxxVec<T> {
        // SAFETY: each place is written once, and our caller passes the vector to its receiver.
        unsafe { CxxVec::build(items.into_iter(), |place: *mut T, item| place.write(item)) }
    }

    /// Frees a vector that C++ built of items that own nothing.
    ///
    /// # Safety
    /// C++ built the vector, and it is not used afterwards.
    pub unsafe fn end(&mut self) {
        if let (false, Some(library)) = (self.begin.is_null(), library()) {
            // SAFETY: C++ built the vector, so its memory came from operator new.
            unsafe { (library.delete)(self.begin.cast()) };
        }
        *self = CxxVec::EMPTY;
    }

    /// # Safety
    /// It is a live vector.
    pub unsafe fn as_slice(&self) -> &[T] {
        if self.begin.is_null() {
            return &[];
        }
        // SAFETY: a live vector has its items from `begin` to `end`.
        unsafe { std::slice::from_raw_parts(self.begin, self.end.offset_from(self.begin) as usize) }
    }
}

/// `std::string`: pointer, length, and either the short text itself or the capacity.
#[repr(C)]
#[derive(Debug)]
pub struct CxxString {
    text: *const u8,
    length: usize,
    local: [u8; 16],
}

impl CxxString {
    /// A string that owns `text`, which ends with a NUL.
    pub fn owning(text: &'static mut [u8]) -> CxxString {
        let length = text.len().saturating_sub(1);
        let mut local = [0; 16];
        local[..8].copy_from_slice(&length.to_ne_bytes());
        CxxString { text: text.as_ptr(), length, local }
    }

    /// Builds a string at `place`, where it must stay until C++ moves it. C++ exceptions may pass the callers.
    ///
    /// # Safety
    /// `place` is valid for a write; the receiver frees the string.
    pub unsafe fn write(place: *mut CxxString, text: &str) {
        // SAFETY: `place` is valid for a write, and the receiver frees the string, which `write_bytes` asks for too.
        unsafe { CxxString::write_bytes(place, text.as_bytes()) };
    }

    /// [`CxxString::write`] for bytes that are not text.
    ///
    /// # Safety
    /// As [`CxxString::write`].
    pub unsafe fn write_bytes(place: *mut CxxString, text: &[u8]) {
        let length = text.len();
        // SAFETY: the text and its NUL fit into the 16 bytes of the short form, or into the memory allocated for them.
        unsafe {
            place.write(CxxString { text: std::ptr::null(), length, local: [0; 16] });
            let to = if length < 16 {
                (&raw mut (*place).local).cast::<u8>()
            } else {
                (&raw mut (*place).local).cast::<usize>().write(length);
                new_bytes(length + 1)
            };
            to.copy_from_nonoverlapping(text.as_ptr(), length);
            to.add(length).write(0);
            (*place).text = to;
        }
    }

    /// Frees a string that C++ does not free: C++ only read it, or returned it to us.
    ///
    /// # Safety
    /// The string is live, and is not used afterwards.
    pub unsafe fn end(place: *mut CxxString) {
        // SAFETY: the string is live. Text outside of the string itself came from operator new.
        unsafe {
            let text = (*place).text;
            if text != (&raw const (*place).local).cast()
                && let Some(library) = library()
            {
                (library.delete)(text.cast_mut().cast());
            }
        }
    }

    /// # Safety
    /// It is a live string.
    pub unsafe fn to_text(&self) -> String {
        // SAFETY: the string is live, which is all that `to_bytes` needs.
        String::from_utf8_lossy(&unsafe { self.to_bytes() }).into_owned()
    }

    /// # Safety
    /// It is a live string.
    pub unsafe fn to_bytes(&self) -> Vec<u8> {
        // SAFETY: a live string has `length` bytes at `text`.
        unsafe { std::slice::from_raw_parts(self.text, self.length) }.to_vec()
    }
}

/// The counts behind a `std::shared_ptr`: table, uses, and weak uses (all uses together count as one).
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    pub table: *const ControlTable,
    pub uses: AtomicI32,
    pub weak: AtomicI32,
}

/// The table of a control block.
#[repr(C)]
#[derive(Debug)]
pub struct ControlTable {
    pub destructors: [unsafe extern "C" fn(*mut Control); 2],
    /// Ends the object, when no uses are left.
    pub dispose: unsafe extern "C" fn(*mut Control),
    /// Frees the control block, when no weak uses are left.
    pub destroy: unsafe extern "C" fn(*mut Control),
    pub deleter: unsafe extern "C" fn(*mut Control, *const c_void) -> *mut c_void,
}

unsafe extern "C" fn no_destructor(_: *mut Control) {}
unsafe extern "C" fn no_deleter(_: *mut Control, _: *const c_void) -> *mut c_void {
    std::ptr::null_mut()
}

impl ControlTable {
    /// For an object of ours: only the counts end it, and C++ never asks for its deleter.
    #[must_use]
    pub const fn new(
        dispose: unsafe extern "C" fn(*mut Control),
        destroy: unsafe extern "C" fn(*mut Control),
    ) -> ControlTable {
        ControlTable { destructors: [no_destructor; 2], dispose, destroy, deleter: no_deleter }
    }
}

/// `std::shared_ptr`.
#[repr(C)]
#[derive(Debug)]
pub struct SharedPtr {
    pub object: *mut c_void,
    pub control: *mut Control,
}

// SAFETY: the counts are atomic. The object behind is never looked at here; C++ guards it.
unsafe impl Send for SharedPtr {}
// SAFETY: the counts are atomic, so any thread may copy a shared pointer that is only read.
unsafe impl Sync for SharedPtr {}

impl SharedPtr {
    pub const NULL: SharedPtr = SharedPtr { object: std::ptr::null_mut(), control: std::ptr::null_mut() };
}

impl Clone for SharedPtr {
    fn clone(&self) -> SharedPtr {
        // SAFETY: the control block lives as long as this use.
        if let Some(control) = unsafe { self.control.as_ref() } {
            control.uses.fetch_add(1, Ordering::Relaxed);
        }
        SharedPtr { ..*self }
    }
}

impl Drop for SharedPtr {
    fn drop(&mut self) {
        // SAFETY: this use is ours, and is given up once. The last use ends the object, the last weak one the control
        // block.
        unsafe {
            let Some(control) = self.control.as_ref() else { return };
            if control.uses.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            let ControlTable { dispose, destroy, .. } = *control.table;
            dispose(self.control);
            if control.weak.fetch_sub(1, Ordering::AcqRel) == 1 {
                destroy(self.control);
            }
        }
    }
}

/// `std::function`: two words of callable, a manager and an invoker of its own type.
#[repr(C)]
#[derive(Debug)]
pub struct Function {
    callable: [*mut c_void; 2],
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

// SAFETY: PyTorch calls the functions that it passes from any thread.
unsafe impl Send for Function {}
// SAFETY: a call takes the function by shared reference and does not change it.
unsafe impl Sync for Function {}

impl Function {
    /// An empty function.
    pub const EMPTY: Function =
        Function { callable: [std::ptr::null_mut(); 2], manager: None, invoker: None };

    /// Copies the function object behind `function`.
    ///
    /// # Safety
    /// `function` points to a live `std::function`. C++ exceptions may pass the callers.
    #[must_use]
    pub unsafe fn copy_of(function: *const Function) -> Function {
        // SAFETY: `function` is live. The manager copies its callable into ours. If that throws, `copy` has no manager
        // yet, so its destructor leaves the callable alone.
        unsafe {
            let source = &*function;
            let mut copy = Function::EMPTY;
            if let Some(manager) = source.manager {
                let (to, from) = ((&raw mut copy.callable).cast(), (&raw const source.callable).cast());
                foreign::copy_callable(manager, to, from);
                copy.manager = source.manager;
                copy.invoker = source.invoker;
            }
            copy
        }
    }

    /// The function to call, and its first argument. `None` for an empty function.
    #[must_use]
    pub(crate) fn invoker(&self) -> Option<(Invoker, *const c_void)> {
        self.invoker.map(|invoker| (invoker, (&raw const self.callable).cast()))
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if let Some(manager) = self.manager {
            let callable: *mut c_void = (&raw mut self.callable).cast();
            // SAFETY: `copy_of` made this copy, which this value owns and destroys once.
            unsafe { foreign::destroy_callable(manager, callable) };
        }
    }
}

/// `std::unordered_set<void*>`, only read: a list of nodes begins in the third word.
#[repr(C)]
#[derive(Debug)]
pub struct PointerSet {
    buckets: *const c_void,
    bucket_count: usize,
    first: *const PointerNode,
    count: usize,
}

#[repr(C)]
#[derive(Debug)]
struct PointerNode {
    next: *const PointerNode,
    value: u64,
}

/// The beginning of a `c10::Registry` with text keys: a `std::unordered_map` of functions.
#[repr(C)]
#[derive(Debug)]
pub struct Callbacks {
    buckets: *const c_void,
    bucket_count: usize,
    first: *const CallbackNode,
    count: usize,
}

#[repr(C)]
#[derive(Debug)]
struct CallbackNode {
    next: *const CallbackNode,
    name: CxxString,
    function: Function,
}

impl Callbacks {
    /// Copies of all functions.
    ///
    /// # Safety
    /// It is a live map, which no other thread changes meanwhile. C++ exceptions may pass the callers.
    #[must_use]
    pub unsafe fn functions(&self) -> Vec<Function> {
        let mut found = Vec::with_capacity(self.count);
        let mut node = self.first;
        // SAFETY: the map is live and does not change, and its list of nodes ends with null.
        while let Some(here) = unsafe { node.as_ref() } {
            // SAFETY: the function is part of a live node, and our caller lets exceptions pass.
            found.push(unsafe { Function::copy_of(&raw const here.function) });
            node = here.next;
        }
        found
    }
}

impl PointerSet {
    /// # Safety
    /// It is a live set, which no other thread changes meanwhile.
    pub unsafe fn to_vec(&self) -> Vec<u64> {
        let mut found = Vec::with_capacity(self.count);
        let mut node = self.first;
        // SAFETY: the set is live and does not change, and its list of nodes ends with null.
        while let Some(here) = unsafe { node.as_ref() } {
            found.push(here.value);
            node = here.next;
        }
        found
    }
}

/// `std::unordered_map<std::string, std::string>`.
#[repr(C)]
#[derive(Debug)]
pub struct StringMap {
    buckets: *mut *mut c_void,
    bucket_count: usize,
    first: *mut StringNode,
    count: usize,
    largest_load: f32,
    next_growth: usize,
    only_bucket: *mut c_void,
}

#[repr(C)]
#[derive(Debug)]
struct StringNode {
    next: *mut StringNode,
    key: CxxString,
    value: CxxString,
    hash: usize,
}

/// The seed of libstdc++'s hashes.
const SEED: usize = 0xc70f_6907;

impl StringMap {
    /// Builds a map with one bucket at `place`, where it must stay. All keys differ.
    ///
    /// # Safety
    /// `place` is valid for a write; the receiver frees the map. C++ exceptions may pass the callers.
    pub unsafe fn write(place: *mut StringMap, pairs: &[(String, String)]) {
        let Some(library) = library() else { std::process::abort() };
        // SAFETY: each node is new and written once. The bucket points before the first node: to the map's own field.
        unsafe {
            let mut first = std::ptr::null_mut();
            for (key, value) in pairs.iter().rev() {
                let node: *mut StringNode = new_bytes(size_of::<StringNode>()).cast();
                (&raw mut (*node).next).write(first);
                CxxString::write(&raw mut (*node).key, key);
                CxxString::write(&raw mut (*node).value, value);
                (&raw mut (*node).hash).write((library.hash)(key.as_ptr().cast(), key.len(), SEED));
                first = node;
            }
            place.write(StringMap {
                buckets: std::ptr::null_mut(),
                bucket_count: 1,
                first,
                count: pairs.len(),
                largest_load: 1.0,
                next_growth: 0,
                only_bucket: std::ptr::null_mut(),
            });
            (*place).buckets = &raw mut (*place).only_bucket;
            if !first.is_null() {
                (*place).only_bucket = (&raw mut (*place).first).cast();
            }
        }
    }
}

/// `ska::flat_hash_map<std::pair<u64, u64>, V>`: an array of slots, and behind it more slots for entries that do not
/// fit.
#[repr(C)]
#[derive(Debug)]
pub struct PairMap<V> {
    entries: *mut PairEntry<V>,
    slots_minus_one: usize,
    shift: i8,
    /// Slots that are looked at for a key. As many follow the last slot, and then an end marker.
    lookups: i8,
    largest_load: f32,
    count: usize,
}

#[repr(C)]
#[derive(Debug)]
struct PairEntry<V> {
    /// Distance from the slot where the key belongs; negative if the slot is empty. The end marker has 0.
    distance: i8,
    key: [u64; 2],
    value: V,
}

impl<V: Copy> PairMap<V> {
    /// Builds a map at `place`. The receiver can walk through it and free it, but cannot look up a key, because the
    /// entries lie in the order of `items`.
    ///
    /// # Safety
    /// `place` is valid for a write; the receiver frees the map. C++ exceptions may pass the callers.
    pub unsafe fn write(place: *mut PairMap<V>, items: &[([u64; 2], V)]) {
        let slots = if items.is_empty() { 1 } else { items.len().next_power_of_two().max(4) };
        let log = slots.trailing_zeros() as i8;
        let (shift, lookups) = if items.is_empty() { (63, 3) } else { (64 - log, log.max(4)) };
        let room = slots - 1 + lookups as usize;
        let entries: *mut PairEntry<V> = new_bytes((room + 1) * size_of::<PairEntry<V>>()).cast();
        // SAFETY: memory for `room` slots and the end marker was allocated.
        unsafe {
            for at in 0..=room {
                let (entry, item) = (entries.add(at), items.get(at));
                let distance = if at == room || item.is_some() { 0 } else { -1 };
                (&raw mut (*entry).distance).write(distance);
                if let Some((key, value)) = item {
                    (&raw mut (*entry).key).write(*key);
                    (&raw mut (*entry).value).write(*value);
                }
            }
            let count = items.len();
            place.write(PairMap {
                entries,
                slots_minus_one: slots - 1,
                shift,
                lookups,
                largest_load: 0.5,
                count,
            });
        }
    }
}

const _: () = {
    assert!(size_of::<PairMap<[u64; 12]>>() == 32 && size_of::<PairEntry<[u64; 12]>>() == 120);
    assert!(size_of::<CxxVec<u8>>() == 24 && size_of::<CxxString>() == 32 && size_of::<SharedPtr>() == 16);
    assert!(size_of::<Function>() == 32 && size_of::<StringMap>() == 56 && size_of::<StringNode>() == 80);
};
