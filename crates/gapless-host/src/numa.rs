//! The NUMA node on which a thread runs. Memory of one node is slow for the processors of another, so each node has an
//! arena of its own: a freed buffer is used again by threads on the node of its memory.

use crate::sys;
use std::ffi::c_long;

/// The number of nodes with an arena of their own. Further nodes share them.
pub const MOST: usize = 8;

/// The queries to the machine, which tests replace.
#[derive(Clone, Copy, Debug)]
pub struct Topology {
    pub nodes: fn() -> usize,
    /// The node of the processor on which this thread runs.
    pub here: fn() -> usize,
    /// Asks for memory of a node in a range.
    pub prefer: fn(*mut u8, usize, usize),
}

pub const MACHINE: Topology = Topology { nodes, here, prefer };

/// Nodes with memory, by the highest number; at least 1.
fn nodes() -> usize {
    let mut buffer = [0; 256];
    let text = sys::keep_errno(|| sys::read_file(c"/sys/devices/system/node/has_memory", &mut buffer));
    highest(text).map_or(1, |number| number as usize + 1).min(MOST)
}

/// The last number of a list such as `0-1,3`.
fn highest(text: &[u8]) -> Option<u64> {
    text.split(|byte| b",-".contains(byte)).filter_map(sys::number).max()
}

fn here() -> usize {
    let (mut cpu, mut node) = (0u32, 0u32);
    let none = std::ptr::null_mut::<u8>();
    // SAFETY: both are valid for writing; the kernel ignores the third argument.
    let result =
        sys::keep_errno(|| unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, none) });
    if result == 0 { node as usize } else { 0 }
}

fn prefer(start: *mut u8, bytes: usize, node: usize) {
    const MPOL_PREFERRED: c_long = 1;
    let mask: u64 = 1 << node;
    // The kernel reads one bit fewer than this number.
    let bits = u64::BITS as usize + 1;
    // SAFETY: a policy does not change the contents of memory; the mask lives until the call is done. If the kernel
    // refuses, memory comes from the node of the thread that touches it first.
    sys::keep_errno(|| unsafe {
        libc::syscall(libc::SYS_mbind, start, bytes, MPOL_PREFERRED, &raw const mask, bits, 0)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_read() {
        for (text, wanted) in
            [("0\n", Some(0)), ("0-3\n", Some(3)), ("0,2\n", Some(2)), ("0-1,8-9", Some(9)), ("", None)]
        {
            assert_eq!(highest(text.as_bytes()), wanted, "{text}");
        }
        assert!((1..=MOST).contains(&nodes()) && here() < 1024);
    }
}
