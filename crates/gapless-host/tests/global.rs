//! A Rust program on [`gapless_host::Gapless`]: this one.
#![cfg(target_os = "linux")]

use gapless_host::core;
use std::alloc::Layout;
use std::collections::BTreeMap;

#[global_allocator]
static MEMORY: gapless_host::Gapless = gapless_host::Gapless;

#[test]
fn collections_of_many_threads_keep_what_they_are_given() {
    let made: Vec<BTreeMap<usize, Vec<u8>>> = std::thread::scope(|scope| {
        let work = |thread: usize| {
            move || (0..2_000).map(|at| (at, vec![thread as u8; at * 7 % 9_000])).collect::<BTreeMap<_, _>>()
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(core::small_held() > 20 << 20, "the blocks are ours");
    for (thread, map) in made.into_iter().enumerate() {
        for (at, bytes) in map {
            assert_eq!(bytes.len(), at * 7 % 9_000);
            assert!(bytes.iter().all(|byte| *byte == thread as u8));
        }
    }
}

#[test]
fn alignments_and_sizes_are_kept_through_changes_of_size() {
    for align in [1, 16, 64, 4096, 1 << 16, 1 << 21] {
        for size in [1, 100, 5_000, 200_000, 3 << 20] {
            let layout = Layout::from_size_align(size, align).expect("a layout");
            // SAFETY: the size is not 0; the block is used within its size and freed once.
            unsafe {
                let block = std::alloc::alloc_zeroed(layout);
                assert_eq!(block.align_offset(align), 0);
                assert_eq!((block.read(), block.add(size - 1).read()), (0, 0));
                block.write(7);
                let larger = std::alloc::realloc(block, layout, 3 * size);
                assert_eq!((larger.align_offset(align), larger.read()), (0, 7));
                let layout = Layout::from_size_align(3 * size, align).expect("a layout");
                std::alloc::dealloc(larger, layout);
            }
        }
    }
}
