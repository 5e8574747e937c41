//! The host memory of one process: a file of its own beside the statistics file, because another library writes it.
//!
//! ```text
//!      0  "GAPLHOST"
//!      8  u32 version, u32 length of the body
//!     16  body: u32 pid, u64 start, namespace, began, text command, text program, u64 time,
//!               u8 figures, each u64, in the order of [`Figures`],
//!               u8 classes, each u64 size of an object, u64 bytes
//!     16 + length  u64 checksum of the body (FNV-1a)
//! ```
//!
//! It is written in one call and read in one. If the checksum is wrong, the reader met a write, and reads again at the
//! next reading.

use crate::error::StatisticsError;
use crate::folder::Folder;
use crate::layout::{COMMAND, Put, TEXT, Take, begin, sum};
use crate::process::{self, Process};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"GAPLHOST";
const VERSION: u32 = 2;
const HEADER: usize = 16;
/// An upper bound for the file.
pub const LARGEST: usize = HEADER + 8 + 512 + CLASSES * 16 + COMMAND + TEXT;
/// The ending of the name of such a file.
const END: &str = ".hoststats";
/// The most classes of small objects that a file lists.
pub const CLASSES: usize = 128;
/// A file that is being written is read at most this many times.
const READINGS: usize = 4;
/// At most this many files of one folder are read.
const MOST: usize = 4096;

/// The figures of a process's host memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostStatistics {
    pub process: Process,
    /// The time of the write, in microseconds since the Unix epoch.
    pub time: u64,
    pub figures: Figures,
    /// Small objects that the program has, by class: the size of an object, and the bytes of all of them.
    pub classes: Vec<(u64, u64)>,
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Large buffers that the program has, now and at most.
    pub large_live: u64,
    pub large_peak: u64,
    /// Memory of freed large buffers that is kept for the next one.
    pub kept: u64,
    /// Memory of small objects, in use or not.
    pub small: u64,
    /// Large buffers that were allocated and freed.
    pub allocations: u64,
    pub frees: u64,
    /// Bytes that were handed out, and those of them that needed no fresh memory.
    pub handed_out: u64,
    pub reused: u64,
    /// Bytes that went back to the kernel.
    pub given_back: u64,
    /// 1 if large buffers get huge pages.
    pub huge_pages: u64,
    /// The limit, or 0 if there is none; and the bytes that all processes of the budget hold.
    pub limit: u64,
    pub budget_held: u64,
    /// Requests that the budget refused.
    pub refused: u64,
    /// Resident memory, which the reader gets from the kernel, and page faults.
    pub resident: u64,
    pub faults: u64,
    /// Small objects that the program has; free ones in the lists of threads; the number of threads that have such
    /// lists, and the most that one of them keeps.
    pub small_live: u64,
    pub lists_kept: u64,
    pub threads: u64,
    pub lists_most: u64,
    /// Memory that a driver registered or allocated; and memory that stays registered for the next buffer.
    pub pinned: u64,
    pub pinned_kept: u64,
}

/// Names the figures once, in the order of the file.
macro_rules! in_order {
    ($($name:ident),* $(,)?) => {
        const COUNT: usize = [$(stringify!($name)),*].len();

        impl Figures {
            fn list(&self) -> [u64; COUNT] {
                [$(self.$name),*]
            }

            fn of(list: [u64; COUNT]) -> Figures {
                let [$($name),*] = list;
                Figures { $($name),* }
            }
        }
    };
}

in_order! {
    large_live,
    large_peak,
    kept,
    small,
    allocations,
    frees,
    handed_out,
    reused,
    given_back,
    huge_pages,
    limit,
    budget_held,
    refused,
    resident,
    faults,
    small_live,
    lists_kept,
    threads,
    lists_most,
    pinned,
    pinned_kept,
}

/// The bytes of a statistics file.
#[must_use]
pub fn encode(statistics: &HostStatistics) -> Vec<u8> {
    let mut body = Put(Vec::with_capacity(1024));
    let Process { pid, start, namespace, began, command, program } = &statistics.process;
    body.u32(*pid);
    [start, namespace, began].into_iter().for_each(|value| body.u64(*value));
    body.text(command, COMMAND);
    body.text(program, TEXT);
    body.u64(statistics.time);
    body.0.push(COUNT as u8);
    statistics.figures.list().into_iter().for_each(|value| body.u64(value));
    let classes = &statistics.classes[..statistics.classes.len().min(CLASSES)];
    body.0.push(classes.len() as u8);
    for (size, bytes) in classes {
        body.u64(*size);
        body.u64(*bytes);
    }
    let mut out = Put(MAGIC.to_vec());
    out.u32(VERSION);
    out.u32(body.0.len() as u32);
    out.0.extend(&body.0);
    out.u64(sum(&body.0));
    out.0
}

/// A statistics file from bytes that any program may have written.
///
/// # Errors
/// [`StatisticsError::Torn`] if the reader should read again; otherwise the error in the bytes.
pub fn decode(bytes: &[u8]) -> Result<HostStatistics, StatisticsError> {
    let (mut head, length) = begin(bytes, &MAGIC, VERSION)?;
    if length > LARGEST {
        return Err(StatisticsError::Wrong("its length"));
    }
    let body = head.bytes(length).ok_or(StatisticsError::Torn)?;
    if head.u64().ok_or(StatisticsError::Torn)? != sum(body) {
        return Err(StatisticsError::Torn);
    }
    let short = || StatisticsError::Wrong("it ends too early");
    let mut body = Take(body);
    let process = Process {
        pid: body.u32().ok_or_else(short)?,
        start: body.number()?,
        namespace: body.number()?,
        began: body.number()?,
        command: body.text(COMMAND)?,
        program: body.text(TEXT)?,
    };
    let time = body.number()?;
    if body.u8() != Some(COUNT as u8) {
        return Err(StatisticsError::Wrong("the number of its figures"));
    }
    let mut list = [0; COUNT];
    for value in &mut list {
        *value = body.number()?;
    }
    let count = usize::from(body.u8().ok_or_else(short)?);
    if count > CLASSES {
        return Err(StatisticsError::Wrong("the number of its classes"));
    }
    let mut classes = Vec::with_capacity(count);
    for _ in 0..count {
        classes.push((body.number()?, body.number()?));
    }
    if !body.0.is_empty() {
        return Err(StatisticsError::Wrong("it goes on after its end"));
    }
    Ok(HostStatistics { process, time, figures: Figures::of(list), classes })
}

/// The path of a process's statistics file.
#[must_use]
pub fn path(folder: &Folder, process: &Process) -> PathBuf {
    folder.path().join(process.file_name()).with_extension(&END[1..])
}

/// Reads a file, again if its process writes it meanwhile. Bytes after the page are ignored.
fn read(path: &Path) -> Option<HostStatistics> {
    for _ in 0..READINGS {
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(LARGEST as u64).read_to_end(&mut bytes).ok()?;
        match decode(&bytes) {
            Err(StatisticsError::Torn) => {}
            found => return found.ok(),
        }
    }
    None
}

/// All host statistics files in the folders of this user, by pid. Removes those of dead processes. Leaves out a file
/// that is being written, or that another version wrote.
#[must_use]
pub fn read_hosts(candidates: &[PathBuf]) -> Vec<HostStatistics> {
    let here = process::namespace();
    let mut files = Vec::new();
    let folders = candidates.iter().filter_map(|path| Folder::open(path).ok().flatten());
    for folder in folders {
        for entry in fs::read_dir(folder.path()).into_iter().flatten().filter_map(Result::ok).take(MOST) {
            let name = entry.file_name();
            let stem =
                name.to_str().and_then(|name| name.strip_suffix(END)).map(|stem| format!("{stem}.stats"));
            let Some((pid, start, namespace)) = stem.as_deref().and_then(process::parse_name) else {
                continue;
            };
            if here != Some(namespace) {
                continue;
            }
            if process::start_of(pid) != Some(start) {
                let _ = fs::remove_file(entry.path());
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_file())
                && let Some(mut statistics) = read(&entry.path())
                && (statistics.process.pid, statistics.process.start) == (pid, start)
            {
                statistics.figures.resident = process::resident_of(pid).unwrap_or(0);
                files.push(statistics);
            }
        }
    }
    files.sort_by_key(|statistics| statistics.process.pid);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics() -> HostStatistics {
        let mut list = [0; COUNT];
        list.iter_mut().enumerate().for_each(|(at, value)| *value = 1 << (at * 2));
        let process = Process::current("test 1").expect("/proc");
        HostStatistics {
            process,
            time: 77,
            figures: Figures::of(list),
            classes: vec![(64, 6400), (1 << 20, 5 << 20)],
        }
    }

    #[test]
    fn a_page_comes_back_and_every_cut_or_changed_one_is_refused() {
        let statistics = statistics();
        let bytes = encode(&statistics);
        assert_eq!(decode(&bytes).expect("a statistics file"), statistics);
        assert!((0..bytes.len()).all(|length| decode(&bytes[..length]).is_err()), "cut");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x41;
            assert!(decode(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_folder_is_read_and_what_the_dead_left_is_removed() {
        let place = std::env::temp_dir().join(format!("gapless-host-page-{}", std::process::id()));
        let folder = Folder::make(std::slice::from_ref(&place)).expect("a folder");
        let statistics = statistics();
        let mut page = encode(&statistics);
        page.resize(LARGEST, 0);
        fs::write(path(&folder, &statistics.process), page).expect("written");
        let dead = Process {
            pid: statistics.process.pid,
            start: statistics.process.start + 1,
            ..statistics.process.clone()
        };
        let left = path(&folder, &dead);
        fs::write(&left, "").expect("written");
        fs::write(place.join("1-2-3.stats"), "another file").expect("written");
        let mut found = read_hosts(std::slice::from_ref(&place));
        assert!(std::mem::replace(&mut found[0].figures.resident, statistics.figures.resident) > 0);
        assert_eq!(found, [statistics]);
        assert!(!left.exists() && place.join("1-2-3.stats").exists());
        fs::remove_dir_all(place).expect("removed");
    }
}
