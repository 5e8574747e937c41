//! Quantising holds a few rows at a time, or one expert if fused experts are transposed. The allocator counts bytes.
//!
//! The tests share one count, so they are one test.

use gapless_weights::quantize;
use gapless_weights::quantize::Options;
use gapless_weights::quantize::experts::{Experts, Halves};
use gapless_weights::quantize::scheme::Scheme;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn add(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call passes its arguments unchanged to the system's allocator, which keeps the trait's contract.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller upholds `GlobalAlloc`'s contract for `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller gives a block of this allocator with its layout, and `System` made it.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as in `dealloc`; the caller checks `size`.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A file of bf16 zeros that takes no room on disk.
fn hollow(path: &Path, tensors: &[(&str, Vec<u64>)]) {
    let (mut entries, mut at) = (Vec::new(), 0);
    for (name, shape) in tensors {
        let bytes = 2 * shape.iter().product::<u64>();
        let end = at + bytes;
        entries.push(format!(
            "{name:?}:{{\"dtype\":\"BF16\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}"
        ));
        at = end;
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + at).unwrap();
}

/// The most bytes that were held at once while a file was quantised, above those before it.
fn most(from: &Path, options: &Options) -> usize {
    let room = tempfile::tempdir().unwrap();
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    quantize(from, &room.path().join("out.safetensors"), options).unwrap();
    MOST.load(Ordering::Relaxed) - before
}

#[test]
fn memory_is_bounded_by_rows_and_by_one_expert() {
    let room = tempfile::tempdir().unwrap();
    let plain = room.path().join("plain.safetensors");
    // 64 MiB, of which a job reads 1 MiB.
    hollow(&plain, &[("a.weight", vec![8192, 4096])]);
    let fused = room.path().join("fused.safetensors");
    // 32 and 16 MiB of 8 experts: 4 MiB and 2 MiB each.
    hollow(
        &fused,
        &[("experts.gate_up_proj", vec![8, 2048, 1024]), ("experts.down_proj", vec![8, 512, 2048])],
    );
    let threads = 2;
    for scheme in Scheme::ALL {
        let experts = Experts::Split(Halves::Pairs);
        let options = Options { scheme, ignore: Vec::new(), experts, work: threads.into() };
        let held = most(&plain, &options);
        // Three jobs a thread, each with its input, its result, and a scheme's working memory.
        assert!(held < 3 * threads * (5 << 20), "{}: {held} bytes of a matrix", scheme.name());
        let held = most(&fused, &options);
        let expert = 4 << 20;
        assert!(held < 2 * expert + 3 * threads * (5 << 20), "{}: {held} bytes of experts", scheme.name());
        assert!(held > expert, "{}: the allocator does not count", scheme.name());
    }
}
