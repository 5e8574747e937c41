//! Files of small tensors: equal after `pack`, `verify` and `unpack`, with any number of threads. `ONLY=small-files
//! cargo xtask bench weights` does the same with ten thousand.

#[path = "made/small.rs"]
mod small;

use std::fs;

#[test]
fn files_of_small_tensors_come_back_whole_and_the_threads_change_no_byte() {
    let folder = tempfile::tempdir().unwrap();
    let mut streams = 0;
    for seed in 0..60 {
        let mut first: Option<Vec<u8>> = None;
        for threads in [1, 2, 3, 8] {
            let done = small::round(folder.path(), seed, threads).unwrap();
            let packed = fs::read(folder.path().join("b")).unwrap();
            assert!(
                *first.get_or_insert(packed.clone()) == packed,
                "file {seed}: {threads} threads write other bytes"
            );
            streams += done.streams;
        }
    }
    assert!(streams > 200, "only {streams} tensors were packed");
}

/// Tensors of n values, then of more in the same number of blocks. The first one's room was once too short.
#[test]
fn tensors_that_grow_within_a_block_are_packed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (dtype, width) in [("F32", 4), ("F16", 2), ("BF16", 2)] {
        let (mut entries, mut data) = (Vec::new(), Vec::<u8>::new());
        for number in 0..64 {
            let count = if number % 2 == 0 { 1000 } else { 1024 };
            let begin = data.len();
            data.extend(
                (0..count * width)
                    .map(|at| if at % width == width - 1 { 60 } else { (at * 7919 / 13) as u8 }),
            );
            let end = data.len();
            entries.push(format!(
                "\"{number}\":{{\"dtype\":\"{dtype}\",\"shape\":[{count}],\"data_offsets\":[{begin},{end}]}}"
            ));
        }
        let header = format!("{{{}}}", entries.join(","));
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        fs::write(at("a"), &file).unwrap();
        for threads in [1, 2, 4] {
            gapless_weights::pack(&at("a"), &at("b"), threads).unwrap();
            gapless_weights::unpack(&at("b"), &at("c"), threads, false).unwrap();
            assert!(fs::read(at("c")).unwrap() == file, "{dtype}, {threads} threads");
        }
    }
}
