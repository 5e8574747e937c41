//! All ways to read and copy bytes give the same bytes: from the mapped file, through rings of both kinds, kept and
//! not, in pieces of many sizes, past the page cache by io_uring and by threads, at a limited rate.

mod common;

use common::{Model, all, read_with, registered, whole};
use gapless_loader::shared::ways;
use gapless_loader::{Catalogue, LoadError, Settings};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The card counts pinned memory of the process, so tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn on_card(ways: u32) -> Settings {
    Settings { device: 0, ways, ..whole(3) }
}

#[test]
fn every_way_gives_the_same_bytes_and_gives_back_what_it_pinned() {
    let _turn = turn();
    let model = Model::new();
    for path in [model.plain(), model.packed()] {
        for ways in 0..8 {
            // Only plain tensors are cut into pieces, and the kernel is slow on the CPU, so packed ones use one size.
            let pieces = if path == model.plain() { &[0, 64 << 10, 300_000, 16 << 20][..] } else { &[0] };
            for piece in pieces.iter().copied() {
                let catalogue = Arc::new(Catalogue::open(&path).unwrap());
                let settings = Settings { piece, ..on_card(ways) };
                let (found, progress) = read_with(&catalogue, &all(&catalogue), settings, true).unwrap();
                for (place, found) in catalogue.tensors.iter().zip(&found) {
                    let name = &catalogue.tensor(*place).name;
                    assert!(*found == model.bytes(name), "{name} by ways {ways}, pieces of {piece}");
                }
                assert_eq!(progress.done, progress.total);
                let is_mapped = ways & ways::MAPPED != 0;
                assert_eq!(progress.mapped > 0, is_mapped, "ways {ways}, pieces of {piece}: {progress:?}");
            }
        }
    }
    assert!(registered().1 > 0, "files were pinned");
    gapless_loader::cuda::release();
    assert_eq!((registered().0, common::pinned().0), (0, 0));
}

#[test]
fn copies_of_several_threads_go_to_the_driver_together_or_one_by_one_where_it_has_no_batches() {
    let _turn = turn();
    let model = Model::new();
    for path in [model.plain(), model.packed()] {
        for has_batches in [true, false] {
            if !has_batches {
                assert_eq!(common::ask(c"test_toggle_batches"), 0);
            }
            let before = common::ask(c"test_batches");
            let catalogue = Arc::new(Catalogue::open(&path).unwrap());
            let settings = Settings { piece: 64 << 10, threads: 8, ..on_card(0) };
            // The scheduler decides if two copies meet, so this tries until they do.
            for turn in 0.. {
                let (found, _) = read_with(&catalogue, &all(&catalogue), settings, true).unwrap();
                for (place, found) in catalogue.tensors.iter().zip(&found) {
                    assert!(*found == model.bytes(&catalogue.tensor(*place).name), "batches: {has_batches}");
                }
                let is_batched = common::ask(c"test_batches") > before;
                assert!(has_batches || !is_batched);
                if is_batched || !has_batches {
                    break;
                }
                assert!(turn < 500, "no two copies went together");
            }
        }
        assert_eq!(common::ask(c"test_toggle_batches"), 1);
    }
}

#[test]
fn a_card_that_fails_ends_every_thread_with_its_error_and_keeps_nothing_pinned() {
    let _turn = turn();
    let model = Model::new();
    for path in [model.plain(), model.packed()] {
        for ways in [0, ways::MAPPED, ways::HUGE] {
            let catalogue = Arc::new(Catalogue::open(&path).unwrap());
            assert_eq!(common::ask(c"test_toggle_broken"), 1);
            let result = read_with(&catalogue, &all(&catalogue), on_card(ways), true);
            assert_eq!(common::ask(c"test_toggle_broken"), 0);
            assert_eq!(common::ask(c"test_pending"), 0);
            assert!(matches!(result, Err(LoadError::Cuda { .. })), "ways {ways}: {result:?}");
            assert_eq!((registered().0, common::pinned().0), (0, 0), "ways {ways}");
        }
    }
}

#[test]
fn calls_that_the_driver_refuses_end_the_loading_when_the_card_has_done_what_it_took() {
    let _turn = turn();
    let model = Model::new();
    for path in [model.plain(), model.packed()] {
        let catalogue = Arc::new(Catalogue::open(&path).unwrap());
        let mut refused = 0;
        for _ in 0..12 {
            for ways in [ways::KEPT, ways::MAPPED | ways::KEPT] {
                common::ask(c"test_refuse_next");
                let result = read_with(&catalogue, &all(&catalogue), on_card(ways), true);
                common::ask(c"test_refuse_none");
                assert_eq!(common::ask(c"test_pending"), 0, "the card works for a loading that has ended");
                refused += usize::from(matches!(result, Err(LoadError::Cuda { .. })));
                // The next loading can use what was kept.
                let (found, _) = read_with(&catalogue, &all(&catalogue), on_card(ways), true).unwrap();
                for (place, found) in catalogue.tensors.iter().zip(&found) {
                    assert!(*found == model.bytes(&catalogue.tensor(*place).name));
                }
            }
        }
        assert!(refused >= 4, "{refused} of 24");
    }
    gapless_loader::cuda::release();
    assert_eq!((registered().0, common::pinned().0), (0, 0));
}

#[test]
fn rings_are_kept_for_the_next_loading_and_no_more_than_were_used() {
    let _turn = turn();
    let model = Model::new();
    let catalogue = Arc::new(Catalogue::open(&model.packed()).unwrap());
    let load = || read_with(&catalogue, &all(&catalogue), on_card(ways::KEPT), true).unwrap();
    gapless_loader::cuda::release();
    load();
    let kept = common::pinned().0;
    assert!(kept > 0 && kept <= 3 * (11 << 20), "{kept}");
    for _ in 0..3 {
        load();
    }
    assert!(common::pinned().0 <= 3 * (11 << 20));
    gapless_loader::cuda::release();
    assert_eq!(common::pinned().0, 0);
}

#[test]
fn a_mapped_file_that_gets_shorter_is_an_error_and_not_a_signal() {
    let _turn = turn();
    let model = Model::new();
    let path = model.folder().join("cut.safetensors");
    fs::copy(model.plain(), &path).unwrap();
    let catalogue = Arc::new(Catalogue::open(&path).unwrap());
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(fs::metadata(&path).unwrap().len() / 2).unwrap();
    let result = read_with(&catalogue, &all(&catalogue), on_card(ways::MAPPED), false);
    assert!(matches!(result, Err(LoadError::Weights(_))), "{result:?}");
    assert_eq!(registered().0, 0);
}

/// Drops a file's pages from the page cache. False if the cache keeps them, as for a file system in memory.
fn cool(path: &std::path::Path) -> bool {
    use std::os::fd::AsRawFd;
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: advice on an open file.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let input = gapless_weights::input::Input::open(path).unwrap();
    !gapless_loader::residency::Residency::default().is_cached(&input, 0, input.size as usize)
}

#[test]
fn cold_files_are_read_past_the_cache_by_io_uring_or_by_threads() {
    let _turn = turn();
    let model = Model::new();
    for path in [model.plain(), model.packed()] {
        for (ways, is_card) in [(0, false), (0, true), (ways::THREADS, false), (ways::CACHED, false)] {
            let is_cold = cool(&path);
            let catalogue = Arc::new(Catalogue::open(&path).unwrap());
            let settings = Settings { device: if is_card { 0 } else { -1 }, ways, ..whole(2) };
            let is_seen = catalogue.is_cold(&settings.reading());
            if path == model.plain() {
                assert_eq!(is_seen, is_cold && ways != ways::CACHED);
            }
            let (found, progress) = read_with(&catalogue, &all(&catalogue), settings, true).unwrap();
            for (place, found) in catalogue.tensors.iter().zip(&found) {
                assert!(*found == model.bytes(&catalogue.tensor(*place).name), "ways {ways}");
            }
            // Opening the packed file reads the streams' heads, and may have cached the bytes that follow.
            if is_cold && path == model.plain() {
                assert_eq!(progress.cold > 0, ways != ways::CACHED, "{progress:?}");
                let is_queued = ways == 0 && gapless_loader::uring::Uring::new().is_some();
                assert_eq!(progress.queued > 0, is_queued, "{progress:?}");
            }
        }
    }
}

#[test]
fn cold_bytes_go_straight_to_memory_that_stands_as_the_file_does_and_nowhere_else() {
    let bytes: Vec<u8> = (0..3_000_001u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cold");
    fs::write(&path, &bytes).unwrap();
    let (page, is_cold) = (gapless_loader::file::PAGE, cool(&path));
    let input = gapless_weights::input::Input::open(&path).unwrap();
    let cached = gapless_loader::file::Cached::new(&input);
    let mut pages = gapless_loader::host::Pages::new(8 * page).unwrap();
    let mut memory = gapless_loader::host::Pages::new(bytes.len() + 3 * page).unwrap();
    let (mut buffer, mut memory) = (pages.buffer(), memory.buffer());
    let ranges =
        [(0, 1 << 20), (123, 70_000), (3 * page + 512, 1_000_000), (2_000_000, 1_000_001), (100, 300)];
    for (at, length) in ranges {
        for (shift, is_queued) in [(0, true), (0, false), (1, true), (8, false)] {
            let mut reading = gapless_loader::file::Reading::new(Default::default(), true, is_queued);
            memory.bytes().fill(0xEE);
            let first = page + at % page + shift;
            let out = &mut memory.bytes()[first..first + length];
            let is_read = cached.read_in_place(&input, at as u64, out, &mut buffer, &mut reading).unwrap();
            if is_cold {
                assert_eq!(is_read, shift == 0 && length > 1000, "{length} from {at}, {shift} beside");
            }
            if is_read {
                assert!(*out == bytes[at..at + length], "{length} from {at}");
            }
            let all = memory.shared();
            let around = all[..first].iter().chain(&all[first + length..]);
            assert!(
                around.into_iter().all(|byte| *byte == 0xEE),
                "{length} from {at}: a byte beside the target"
            );
        }
    }
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1_500_000).unwrap();
    for is_queued in [true, false] {
        let mut reading = gapless_loader::file::Reading::new(Default::default(), true, is_queued);
        let out = &mut memory.bytes()[..2 << 20];
        let result = cached.read_in_place(&input, 0, out, &mut buffer, &mut reading);
        assert!(matches!(result, Err(_) | Ok(false)), "the file is shorter than the range");
    }
}

#[test]
fn a_limited_rate_is_kept_and_a_cancelled_loading_does_not_wait_for_it() {
    let model = Model::new();
    let catalogue = Arc::new(Catalogue::open(&model.plain()).unwrap());
    // The rate delays the beginning of a job, not its end, so 2 MiB less than all bytes must take their time.
    let began = Instant::now();
    let settings = Settings { limit_rate: 20 << 20, ..whole(2) };
    let (_, progress) = read_with(&catalogue, &all(&catalogue), settings, false).unwrap();
    let least = (progress.read - (2 << 20)) as f64 / f64::from(20 << 20);
    assert!(began.elapsed().as_secs_f64() >= 0.9 * least, "{:?} is less than {least} s", began.elapsed());
    let mut target = vec![0u8; 5_000_000];
    let random =
        catalogue.tensors.iter().position(|place| catalogue.tensor(*place).name == "random").unwrap();
    let piece = gapless_loader::Piece {
        tensor: random as u64,
        begin: 0,
        end: 5_000_000,
        target: target.as_mut_ptr() as u64,
    };
    // SAFETY: the target lives until the loading is dropped, and nothing else uses it.
    let load = unsafe {
        gapless_loader::Load::start(&catalogue, &[piece], Settings { limit_rate: 1, ..whole(1) }, None)
            .unwrap()
    };
    load.cancel();
    drop(load);
    assert!(began.elapsed() < Duration::from_secs(600), "a byte a second would take weeks");
}
