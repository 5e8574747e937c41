//! Files with random damage cause an error or load, but never a panic, a signal, or a byte outside of a target. Chunks
//! get right checksums again, so that their damage reaches the decoders: the host's, and the card's kernel.

mod common;

use common::{Random, card, host, without_sum, write};
use gapless_loader::Catalogue;
use gapless_weights::checksum::checksum;
use gapless_weights::stream::Directory;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// A small packed file whose tensors are streams.
fn packed(folder: &Path) -> Vec<u8> {
    let mut random = Random::new(7);
    let bf16 = |random: &mut Random, count| -> Vec<u8> {
        (0..count)
            .flat_map(|_| ((random.normal() * 0.02).to_bits() >> 16).to_le_bytes()[..2].to_vec())
            .collect()
    };
    let tensors = [
        ("a", "BF16", vec![3000], bf16(&mut random, 3000)),
        ("b", "F32", vec![700], (0..700).flat_map(|_| (random.next() as f32).to_le_bytes()).collect()),
        ("c", "BF16", vec![1111], bf16(&mut random, 1111)),
        ("d", "U8", vec![1500], (0..1500).map(|_| (random.next() as u8).min(9)).collect()),
    ];
    let (plain, to) = (folder.join("plain.safetensors"), folder.join("packed.safetensors"));
    write(&plain, &tensors);
    gapless_weights::pack(&plain, &to, 1).unwrap();
    let mut file = fs::read(to).unwrap();
    // Otherwise the header's sums would refuse almost all mutants.
    without_sum(&mut file);
    file
}

/// Gives each stream of a file the checksums of its present contents.
fn mend(path: &Path, file: &mut [u8]) {
    let Ok(reader) = gapless_weights::Reader::open(path) else { return };
    for index in 0..reader.header.tensors.len() {
        let (range, stored) = reader.place(index);
        if stored != Some(gapless_weights::packed::Stored::Stream) {
            continue;
        }
        let stream = &mut file[range.start as usize..range.end as usize];
        let Ok(mut directory) = Directory::parse(stream, stream.len() as u64) else { continue };
        for entry in &mut directory.entries {
            entry.checksum = checksum(&stream[entry.start as usize..entry.start as usize + entry.length]);
        }
        let head = directory.to_bytes();
        stream[..head.len()].copy_from_slice(&head);
    }
}

/// Loads `count` mutants of a file. Returns how many were loaded, and how many were refused.
fn run(seed: u64, count: usize, is_card: bool) -> (usize, usize) {
    // In memory if there is such a folder, because a disk would take most of the time.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let good = packed(folder.path());
    let data = 8 + u64::from_le_bytes(*good.first_chunk().unwrap()) as usize;
    let path = folder.path().join("mutant.safetensors");
    let mut random = Random::new(seed);
    let (mut loaded, mut refused) = (0, 0);
    for number in 0..count {
        let mut bad = good.clone();
        // Damages headers, heads of streams and chunks, and all other bytes.
        let from = if number % 4 == 0 { 0 } else { data };
        for _ in 0..1 + random.next() % 3 {
            let at = from + random.next() as usize % (bad.len() - from);
            bad[at] = if random.next().is_multiple_of(2) {
                random.next() as u8
            } else {
                bad[at] ^ 1 << (random.next() % 8)
            };
        }
        if number % 16 == 0 {
            bad.truncate(random.next() as usize % bad.len());
        }
        fs::write(&path, &bad).unwrap();
        if number % 4 != 0 {
            mend(&path, &mut bad);
            fs::write(&path, &bad).unwrap();
        }
        let result = Catalogue::open(&path).and_then(|catalogue| {
            let catalogue = Arc::new(catalogue);
            if is_card { card(&catalogue, 1, true) } else { host(&catalogue, 1) }
        });
        if result.is_ok() { loaded += 1 } else { refused += 1 }
    }
    (loaded, refused)
}

#[test]
fn mutants_are_loaded_or_refused_on_the_host() {
    let (loaded, refused) = run(1, 10_000, false);
    assert!(loaded > 1000 && refused > 1000, "{loaded} loaded, {refused} refused");
}

#[test]
fn mutants_are_loaded_or_refused_by_the_kernel_too() {
    let (loaded, refused) = run(2, 400, true);
    assert!(loaded > 40 && refused > 40, "{loaded} loaded, {refused} refused");
}
