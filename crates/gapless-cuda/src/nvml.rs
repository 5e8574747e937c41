//! NVIDIA's management library: every card of this machine, its memory use, and the processes on it. It needs no CUDA
//! context.
//!
//! `libnvidia-ml.so.1` comes with the driver; we load it with dlopen. Only its initialisation must succeed. Each later
//! answer is an `Option`, because drivers refuse some questions (in containers, on vGPUs, for cards that are gone).
//!
//! A card that is divided (MIG) is not listed; its instances are, each with a UUID and memory of its own. Clients of
//! the Multi-Process Service are listed if the driver reports them. If it does not, their memory counts as their
//! server's.
//!
//! We never shut the library down; it stays loaded until the process ends.

use crate::identity::{Uuid, text_of};
use crate::library::Library;
use crate::locks::SetOnce;
pub use crate::memory::Memory;
use crate::unified;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt;

type Status = c_int;
type Handle = *mut c_void;

const SUCCESS: Status = 0;
const NOT_SUPPORTED: Status = 3;
/// The library has no such function.
const NOT_FOUND: Status = 13;
const INSUFFICIENT_SIZE: Status = 7;
/// The driver's value if it does not know the memory of a process.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Room for names and UUIDs, as the headers advise.
const TEXT: usize = 96;
/// The most instances of a card that are asked for; today's cards have seven.
const MOST_INSTANCES: u32 = 64;
/// The most processes of a card that are asked for: more than any machine runs, so that a wrong count cannot use up all
/// memory.
const MOST_PROCESSES: u32 = 1 << 16;

/// The reason why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NvmlError {
    /// libnvidia-ml.so.1 was not found.
    Missing,
    /// It lacks a function that everything needs.
    Lacks(&'static str),
    /// It was loaded, but cannot talk to a driver.
    Start(i32),
}

impl fmt::Display for NvmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NvmlError::Missing => f.write_str("libnvidia-ml.so.1 was not found"),
            NvmlError::Lacks(name) => write!(f, "libnvidia-ml.so.1 has no {name}"),
            // Texts for the usual numbers, from the headers.
            NvmlError::Start(9) => f.write_str("the NVIDIA driver is not loaded"),
            NvmlError::Start(18) => {
                f.write_str("the NVIDIA driver and its libraries are of different versions")
            }
            NvmlError::Start(status) => write!(f, "NVML did not start (error {status})"),
        }
    }
}

impl std::error::Error for NvmlError {}

/// A process that has work on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The number that the driver sees. In a container without the host's processes, the process has another one there.
    pub pid: u32,
    /// Bytes of the card; `None` if the driver does not say.
    pub used: Option<u64>,
}

type Count = unsafe extern "C" fn(*mut c_uint) -> Status;
type ByIndex = unsafe extern "C" fn(c_uint, *mut Handle) -> Status;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut Handle) -> Status;
type GetIndex = unsafe extern "C" fn(Handle, *mut c_uint) -> Status;
type GetText = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> Status;
type GetMode = unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> Status;
type InstanceByIndex = unsafe extern "C" fn(Handle, c_uint, *mut Handle) -> Status;
type GetMemory = unsafe extern "C" fn(Handle, *mut c_void) -> Status;
type GetProcesses = unsafe extern "C" fn(Handle, *mut c_uint, *mut c_void) -> Status;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Memory1 {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Memory2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process1 {
    pid: c_uint,
    used: u64,
}

/// `nvmlProcessInfo_v2_t`, which the third version of the functions still fills.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process2 {
    pid: c_uint,
    used: u64,
    instances: [c_uint; 2],
}

impl From<Process1> for Process {
    fn from(Process1 { pid, used }: Process1) -> Process {
        Process { pid, used: (used != NOT_AVAILABLE).then_some(used) }
    }
}

impl From<Process2> for Process {
    fn from(Process2 { pid, used, .. }: Process2) -> Process {
        Process1 { pid, used }.into()
    }
}

/// Functions that list processes, by the structure that they fill. The name that was found determines it.
#[derive(Clone, Copy)]
enum Lister {
    First(GetProcesses),
    Second(GetProcesses),
}

/// The library, started.
#[derive(Clone, Copy)]
pub struct Nvml {
    count: Count,
    by_index: ByIndex,
    by_uuid: Option<ByUuid>,
    index: Option<GetIndex>,
    uuid: Option<GetText>,
    name: Option<GetText>,
    memory_1: Option<GetMemory>,
    memory_2: Option<GetMemory>,
    compute: Option<Lister>,
    graphics: Option<Lister>,
    /// Clients of the Multi-Process Service.
    clients: Option<Lister>,
    instance_mode: Option<GetMode>,
    most_instances: Option<GetIndex>,
    instance_by_index: Option<InstanceByIndex>,
    instance_number: Option<GetIndex>,
}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nvml")
    }
}

/// A card of the library.
#[derive(Clone, Copy, Debug)]
pub struct NvmlDevice<'a> {
    nvml: &'a Nvml,
    handle: Handle,
    /// The card, if this is an instance of one.
    parent: Option<Handle>,
}

impl Nvml {
    /// The library of this machine, started on first use. A failure is final for this process.
    ///
    /// # Errors
    /// If there is none, or if it cannot talk to a driver.
    pub fn open() -> Result<&'static Nvml, NvmlError> {
        static NVML: SetOnce<Result<Nvml, NvmlError>> = SetOnce::new();
        NVML.get_or_init(Nvml::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Nvml, NvmlError> {
        let library = Library::open(c"libnvidia-ml.so.1").ok_or(NvmlError::Missing)?;
        macro_rules! function {
            ($name:literal, $kind:ty) => {
                // SAFETY: the library's headers give this name this type.
                library.find($name).map(|found| unsafe { std::mem::transmute::<*mut c_void, $kind>(found) })
            };
        }
        macro_rules! lister {
            ($third:literal, $second:literal, $first:literal) => {
                function!($third, GetProcesses)
                    .or_else(|| function!($second, GetProcesses))
                    .map(Lister::Second)
                    .or_else(|| function!($first, GetProcesses).map(Lister::First))
            };
        }
        let init = function!(c"nvmlInit_v2", unsafe extern "C" fn() -> Status)
            .ok_or(NvmlError::Lacks("nvmlInit_v2"))?;
        let nvml = Nvml {
            count: function!(c"nvmlDeviceGetCount_v2", Count)
                .ok_or(NvmlError::Lacks("nvmlDeviceGetCount_v2"))?,
            by_index: function!(c"nvmlDeviceGetHandleByIndex_v2", ByIndex)
                .ok_or(NvmlError::Lacks("nvmlDeviceGetHandleByIndex_v2"))?,
            by_uuid: function!(c"nvmlDeviceGetHandleByUUID", ByUuid),
            index: function!(c"nvmlDeviceGetIndex", GetIndex),
            uuid: function!(c"nvmlDeviceGetUUID", GetText),
            name: function!(c"nvmlDeviceGetName", GetText),
            memory_1: function!(c"nvmlDeviceGetMemoryInfo", GetMemory),
            memory_2: function!(c"nvmlDeviceGetMemoryInfo_v2", GetMemory),
            compute: lister!(
                c"nvmlDeviceGetComputeRunningProcesses_v3",
                c"nvmlDeviceGetComputeRunningProcesses_v2",
                c"nvmlDeviceGetComputeRunningProcesses"
            ),
            graphics: lister!(
                c"nvmlDeviceGetGraphicsRunningProcesses_v3",
                c"nvmlDeviceGetGraphicsRunningProcesses_v2",
                c"nvmlDeviceGetGraphicsRunningProcesses"
            ),
            clients: lister!(
                c"nvmlDeviceGetMPSComputeRunningProcesses_v3",
                c"nvmlDeviceGetMPSComputeRunningProcesses_v2",
                c"nvmlDeviceGetMPSComputeRunningProcesses"
            ),
            instance_mode: function!(c"nvmlDeviceGetMigMode", GetMode),
            most_instances: function!(c"nvmlDeviceGetMaxMigDeviceCount", GetIndex),
            instance_by_index: function!(c"nvmlDeviceGetMigDeviceHandleByIndex", InstanceByIndex),
            instance_number: function!(c"nvmlDeviceGetGpuInstanceId", GetIndex),
        };
        // SAFETY: the function takes nothing.
        match unsafe { init() } {
            SUCCESS => Ok(nvml),
            status => Err(NvmlError::Start(status)),
        }
    }

    /// Number of cards; 0 if the driver does not say.
    #[must_use]
    pub fn count(&self) -> u32 {
        let mut count = 0;
        // SAFETY: a valid out-pointer.
        let status = unsafe { (self.count)(&raw mut count) };
        if status == SUCCESS { count } else { 0 }
    }

    /// The card with this number in the order of the machine's bus, which `CUDA_VISIBLE_DEVICES` does not change.
    #[must_use]
    pub fn device(&self, index: u32) -> Option<NvmlDevice<'_>> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a valid out-pointer.
        let status = unsafe { (self.by_index)(index, &raw mut handle) };
        (status == SUCCESS && !handle.is_null()).then_some(NvmlDevice { nvml: self, handle, parent: None })
    }

    /// The card, or instance, to which CUDA gives this UUID.
    #[must_use]
    pub fn device_by_uuid(&self, uuid: Uuid) -> Option<NvmlDevice<'_>> {
        let by_uuid = self.by_uuid?;
        let card = uuid.to_string();
        let instance = card.replacen("GPU-", "MIG-", 1);
        [card, instance].iter().find_map(|text| {
            let text = CString::new(text.as_str()).ok()?;
            let mut handle = std::ptr::null_mut();
            // SAFETY: a NUL-terminated text and a valid out-pointer.
            let status = unsafe { by_uuid(text.as_ptr(), &raw mut handle) };
            (status == SUCCESS && !handle.is_null()).then_some(NvmlDevice {
                nvml: self,
                handle,
                parent: None,
            })
        })
    }

    /// All cards that can be asked; for a divided one, its instances.
    pub fn devices(&self) -> impl Iterator<Item = NvmlDevice<'_>> {
        (0..self.count()).filter_map(|index| self.device(index)).flat_map(|device| {
            let instances = device.instances();
            if instances.is_empty() { vec![device] } else { instances }
        })
    }
}

impl<'a> NvmlDevice<'a> {
    /// The instances of a divided card; none if it is not divided.
    #[must_use]
    pub fn instances(&self) -> Vec<NvmlDevice<'a>> {
        let nvml = self.nvml;
        let (Some(mode), Some(by_index)) = (nvml.instance_mode, nvml.instance_by_index) else {
            return Vec::new();
        };
        let (mut now, mut next) = (0, 0);
        // SAFETY: the handle came from the library; valid out-pointers.
        let status = unsafe { mode(self.handle, &raw mut now, &raw mut next) };
        if status != SUCCESS || now == 0 {
            return Vec::new();
        }
        // Removed instances leave gaps in the numbers.
        let most = self.number(nvml.most_instances).unwrap_or(MOST_INSTANCES).min(MOST_INSTANCES);
        let instance = |at| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the handle came from the library; a valid out-pointer.
            let status = unsafe { by_index(self.handle, at, &raw mut handle) };
            let parent = Some(self.handle);
            (status == SUCCESS && !handle.is_null()).then_some(NvmlDevice { nvml, handle, parent })
        };
        (0..most).filter_map(instance).collect()
    }

    fn number(&self, get: Option<GetIndex>) -> Option<u32> {
        Self::number_of(self.handle, get)
    }

    fn number_of(handle: Handle, get: Option<GetIndex>) -> Option<u32> {
        let mut number = 0;
        // SAFETY: the handle came from the library; a valid out-pointer.
        let status = unsafe { get?(handle, &raw mut number) };
        (status == SUCCESS).then_some(number)
    }

    /// Number of the card in the order of the machine's bus; for an instance, that of its card.
    #[must_use]
    pub fn index(&self) -> Option<u32> {
        Self::number_of(self.parent.unwrap_or(self.handle), self.nvml.index)
    }

    /// Number of an instance, as NVIDIA's tools show it; `None` for a whole card.
    #[must_use]
    pub fn instance(&self) -> Option<u32> {
        self.parent.and_then(|_| self.number(self.nvml.instance_number))
    }

    fn text(&self, get: Option<GetText>) -> Option<String> {
        let mut text = [0u8; TEXT];
        // SAFETY: the handle came from the library; the buffer has as many bytes as the call says.
        let status = unsafe { get?(self.handle, text.as_mut_ptr().cast(), TEXT as c_uint) };
        (status == SUCCESS).then(|| text_of(&text)).flatten()
    }

    /// The UUID as NVIDIA's tools print it; [`Uuid::parse`] reads it.
    #[must_use]
    pub fn uuid(&self) -> Option<String> {
        self.text(self.nvml.uuid)
    }

    #[must_use]
    pub fn name(&self) -> Option<String> {
        self.text(self.nvml.name)
    }

    /// Its memory; `None` if the driver does not say, or if the card has no memory of its own.
    #[must_use]
    pub fn memory(&self) -> Option<Memory> {
        self.own_memory().ok()
    }

    /// Its memory, and true if that is the host's: cards without their own memory use that.
    #[must_use]
    pub fn memory_or_host(&self) -> Option<(Memory, bool)> {
        match self.own_memory() {
            Ok(memory) => Some((memory, false)),
            Err(NOT_SUPPORTED) => unified::host().map(|memory| (memory, true)),
            Err(_) => None,
        }
    }

    fn own_memory(&self) -> Result<Memory, Status> {
        // The newer function counts the driver's own memory separately. For both, `used` is computed from `free`.
        if let Some(get) = self.nvml.memory_2 {
            let version = size_of::<Memory2>() as c_uint | 2 << 24;
            let mut memory = Memory2 { version, ..Memory2::default() };
            // SAFETY: the structure has the version and size that it names.
            if unsafe { get(self.handle, (&raw mut memory).cast()) } == SUCCESS {
                let Memory2 { total, free, .. } = memory;
                return Ok(Memory { total, used: total.saturating_sub(free), free });
            }
        }
        let get = self.nvml.memory_1.ok_or(NOT_FOUND)?;
        let mut memory = Memory1::default();
        // SAFETY: the structure that the first version fills.
        match unsafe { get(self.handle, (&raw mut memory).cast()) } {
            SUCCESS => {
                let Memory1 { total, free, .. } = memory;
                Ok(Memory { total, used: total.saturating_sub(free), free })
            }
            status => Err(status),
        }
    }

    /// The processes that have work on the card, by number; `None` if the driver refuses.
    #[must_use]
    pub fn processes(&self) -> Option<Vec<Process>> {
        let compute = self.nvml.compute.and_then(|lister| self.list(lister));
        let graphics = self.nvml.graphics.and_then(|lister| self.list(lister));
        let clients = self.nvml.clients.and_then(|lister| self.list(lister));
        if compute.is_none() && graphics.is_none() && clients.is_none() {
            return None;
        }
        let mut all: Vec<Process> = compute.into_iter().chain(graphics).chain(clients).flatten().collect();
        // A process that computes and draws is in several lists, with the same bytes.
        all.sort_unstable_by_key(|process| (process.pid, std::cmp::Reverse(process.used)));
        all.dedup_by_key(|process| process.pid);
        Some(all)
    }

    fn list(&self, lister: Lister) -> Option<Vec<Process>> {
        match lister {
            Lister::First(get) => self.fill::<Process1>(get),
            Lister::Second(get) => self.fill::<Process2>(get),
        }
    }

    fn fill<T: Copy + Default + Into<Process>>(&self, get: GetProcesses) -> Option<Vec<Process>> {
        let mut room: u32 = 64;
        // Processes may start meanwhile, so the list grows a few times before this gives up.
        for _ in 0..8 {
            let mut list = vec![T::default(); room as usize];
            let mut count: c_uint = room;
            // SAFETY: a list of `count` structures of the kind that this function fills.
            let status = unsafe { get(self.handle, &raw mut count, list.as_mut_ptr().cast()) };
            match status {
                SUCCESS => {
                    list.truncate(count as usize);
                    return Some(list.into_iter().map(Into::into).collect());
                }
                INSUFFICIENT_SIZE if room < MOST_PROCESSES => {
                    room = count.saturating_add(16).max(2 * room).min(MOST_PROCESSES);
                }
                _ => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_library_fills_them() {
        assert_eq!((size_of::<Memory1>(), size_of::<Memory2>()), (24, 40));
        assert_eq!((size_of::<Process1>(), size_of::<Process2>()), (16, 24));
    }

    #[test]
    fn what_the_driver_does_not_know_is_not_a_number() {
        assert_eq!(Process::from(Process1 { pid: 7, used: NOT_AVAILABLE }), Process { pid: 7, used: None });
        assert_eq!(Process::from(Process1 { pid: 7, used: 0 }), Process { pid: 7, used: Some(0) });
    }

    #[test]
    fn every_failure_says_what_is_missing() {
        assert!(NvmlError::Missing.to_string().contains("libnvidia-ml.so.1"));
        assert!(NvmlError::Lacks("nvmlInit_v2").to_string().contains("nvmlInit_v2"));
        assert!(NvmlError::Start(9).to_string().contains("not loaded"));
        assert!(NvmlError::Start(999).to_string().contains("999"));
    }
}
