//! From a writer to a reader, with interventions in the file, the folder or the writer in between.

use gapless_stats::layout::{self, decode, encode};
use gapless_stats::process::{self, now};
use gapless_stats::reader::{read, read_all};
use gapless_stats::{
    Card, Counters, Folder, FolderError, Holder, Lane, Process, Region, Sample, Statistics, StatisticsError,
    Writer,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// A folder of its own for each test, removed at the end of the test.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Temp {
        let path = std::env::temp_dir().join(format!("gapless-stats-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("its mode");
        Temp(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn own(&self) -> Folder {
        Folder::make(&[self.path("own")]).expect("a folder")
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Pseudo-random numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 ^ self.0 >> 29
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 20) as usize % n
    }
}

fn card(index: u32) -> Card {
    let n = u64::from(index) + 1;
    Card {
        index,
        uuid: Some([index as u8; 16]),
        name: "NVIDIA H200".to_owned(),
        total: 141 << 30,
        free: 70 << 30,
        limit: (index == 0).then_some(60 << 30),
        live: n << 30,
        peak_live: n << 31,
        requested: n << 29,
        active: n << 30,
        reserved: (3 * n) << 30,
        peak_reserved: (5 * n) << 30,
        stranded: 7 * n,
        blocks: 11 * n,
        counters: Counters {
            allocations: 1,
            frees: 2,
            ooms: 3,
            retries: 4,
            creates: 5,
            maps: 6,
            device_allocs: 7,
            device_frees: 8,
            harvested: 9,
            host_waits: 10,
            driver_ns: 11,
        },
        lanes: vec![Lane { stream: 0x7f00, pool: (0, 4), blocks: 2, live: 3, reserved: 4 }; 3],
        more_lanes: 5,
        holders: vec![Holder { what: "model.py:3 forward".to_owned(), bytes: 9, blocks: 1 }],
        regions: vec![region("weights"), region("cache")],
        samples: (0..9)
            .map(|t| Sample { time: t, live: t + 1, reserved: t + 2, allocations: t * t })
            .collect(),
    }
}

fn region(name: &str) -> Region {
    Region { name: name.to_owned(), keep: "host".to_owned(), live: 1, held: 2, asleep: 3, host: 4 }
}

fn statistics() -> Statistics {
    let process = Process::current("gapless test").expect("/proc");
    let mut statistics = Statistics::new(process).with_tenant("team-a", Some(9 << 30));
    statistics.time = now();
    statistics.cards = vec![card(0), card(3)];
    statistics
}

#[test]
fn what_is_written_is_read() {
    let temp = Temp::new("round-trip");
    let (folder, statistics) = (temp.own(), statistics());
    let mut writer = Writer::create(&folder, &statistics.process).expect("a statistics file");
    writer.write(&statistics).expect("written");
    assert_eq!(read(writer.path()).expect("a statistics file"), statistics);
    // A shorter file over a longer one.
    let shorter = Statistics { cards: vec![card(1)], tenant: None, ..statistics.clone() };
    writer.write(&shorter).expect("written");
    assert_eq!(read(writer.path()).expect("a statistics file"), shorter);
    let all = read_all(&[temp.path("own"), temp.path("nowhere")]);
    assert_eq!(all.files, [shorter]);
    assert!(all.refused.is_empty() && all.unreadable.is_empty(), "{all:?}");
    let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
    assert_eq!((mode(folder.path()), mode(writer.path())), (0o700, 0o600));
    writer.remove();
    assert!(read_all(&[temp.path("own")]).files.is_empty());
}

#[test]
fn the_file_is_under_no_descriptor_that_the_program_may_close_or_replace() {
    let temp = Temp::new("descriptors");
    let statistics = statistics();
    let mut writer = Writer::create(&temp.own(), &statistics.process).expect("a statistics file");
    for _ in 0..3 {
        writer.write(&statistics).expect("written");
        let own = fs::read_dir("/proc/self/fd").expect("a folder").filter_map(Result::ok);
        let found = own.filter_map(|entry| fs::read_link(entry.path()).ok()).find(|to| to == writer.path());
        assert_eq!(found, None);
    }
    // The files that it reads to know its folder and process are opened there too.
    let name = || {
        let files = fs::read_dir("/proc/thread-self/fd").expect("a folder").count();
        assert!(files <= 1, "{files} descriptors");
        None
    };
    assert!(Writer::begin(name).is_err(), "there is no folder");
}

#[test]
fn what_is_too_long_for_a_page_loses_its_end() {
    let mut statistics = statistics();
    statistics.process.command = "é".repeat(2000);
    statistics.cards[0].lanes = vec![Lane::default(); layout::LANES + 7];
    statistics.cards[0].holders = vec![Holder { what: "x".repeat(500), ..Holder::default() }; 99];
    statistics.cards[0].regions = vec![region(&"y".repeat(500)); 99];
    statistics.cards[0].samples = (0..1000).map(|time| Sample { time, ..Sample::default() }).collect();
    statistics.cards.resize(100, Card::default());
    let bytes = encode(&statistics, 1);
    assert!(bytes.len() <= layout::LARGEST);
    let read = decode(&bytes).expect("a statistics file");
    assert_eq!(read.process.command, "é".repeat(layout::COMMAND / 2));
    assert_eq!((read.cards.len(), read.cards[0].lanes.len()), (layout::CARDS, layout::LANES));
    assert_eq!(read.cards[0].more_lanes, 5 + 7);
    assert_eq!(read.cards[0].holders.len(), layout::HOLDERS);
    assert_eq!(read.cards[0].holders[0].what, "x".repeat(layout::TEXT));
    assert_eq!(read.cards[0].regions.len(), layout::REGIONS);
    assert_eq!(read.cards[0].regions[0].name, "y".repeat(layout::TEXT));
    let samples = &read.cards[0].samples;
    assert_eq!((samples.len(), samples.last().map(|s| s.time)), (layout::SAMPLES, Some(999)), "the newest");
}

#[test]
fn the_largest_page_fits() {
    let text = "x".repeat(4 * layout::COMMAND);
    let mut full =
        Statistics::new(Process { command: text.clone(), program: text.clone(), ..Process::default() });
    full = full.with_tenant(&text, Some(1));
    let card = Card {
        uuid: Some([1; 16]),
        name: text.clone(),
        limit: Some(1),
        lanes: vec![Lane::default(); layout::LANES],
        holders: vec![Holder { what: text.clone(), ..Holder::default() }; layout::HOLDERS],
        regions: vec![Region { name: text.clone(), keep: text, ..Region::default() }; layout::REGIONS],
        samples: vec![Sample::default(); layout::SAMPLES],
        ..Card::default()
    };
    full.cards = vec![card; layout::CARDS];
    let bytes = encode(&full, u64::MAX);
    assert!(bytes.len() <= layout::LARGEST, "{} of {}", bytes.len(), layout::LARGEST);
    assert_eq!(decode(&bytes).expect("a statistics file").cards.len(), layout::CARDS);
}

#[test]
fn text_that_would_steer_a_terminal_is_defused() {
    let mut statistics = statistics();
    statistics.process.command = "python \x1b[2J\u{202e}\r\n\u{7f}x".to_owned();
    let read = decode(&encode(&statistics, 1)).expect("a statistics file");
    assert_eq!(read.process.command, "python ?[2J????x");
}

#[test]
fn a_page_that_is_cut_anywhere_is_no_page() {
    let bytes = encode(&statistics(), 7);
    for end in 0..bytes.len() {
        match decode(&bytes[..end]) {
            Err(StatisticsError::Torn) => assert!(end == 0 || end >= 8, "{end}"),
            Err(StatisticsError::NotStatistics) => assert!((1..8).contains(&end), "{end}"),
            other => panic!("{end}: {other:?}"),
        }
    }
}

#[test]
fn every_wrong_byte_is_noticed() {
    let bytes = encode(&statistics(), 7);
    for at in 0..bytes.len() {
        for flip in [1u8, 0x80, 0xff] {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            assert!(decode(&wrong).is_err(), "byte {at}");
        }
    }
}

/// A body as any program may make it, with a correct header and checksum.
fn sealed(body: &[u8]) -> Vec<u8> {
    let mut bytes = layout::MAGIC.to_vec();
    bytes.extend(layout::VERSION.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(body);
    let mut summed = 1u64.to_le_bytes().to_vec();
    summed.extend((body.len() as u64).to_le_bytes());
    summed.extend(body);
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let sum = summed.iter().fold(0xcbf2_9ce4_8422_2325, step);
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(sum.to_le_bytes());
    bytes
}

#[test]
fn a_hostile_body_is_an_error_in_words_and_never_a_panic() {
    let whole = encode(&statistics(), 1);
    let body = &whole[24..whole.len() - 16];
    assert_eq!(sealed(body), whole);
    let mut numbers = Numbers(42);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = body.to_vec();
        for _ in 0..1 + numbers.below(8) {
            let at = numbers.below(bytes.len());
            bytes[at] = [0, 0xff, 0x7f, numbers.next() as u8][numbers.below(4)];
        }
        if numbers.below(4) == 0 {
            bytes.truncate(numbers.below(bytes.len()));
        }
        match decode(&sealed(&bytes)) {
            Ok(statistics) => {
                read += 1;
                // A file that was read can be shown, whatever its contents.
                for card in &statistics.cards {
                    assert!((0.0..=1.0).contains(&card.fragmentation()));
                    assert!(card.allocations_per_second() >= 0.0);
                }
                assert!(!statistics.process.command.chars().any(char::is_control));
            }
            Err(StatisticsError::Wrong(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(read > 100 && refused > 1000, "{read} read, {refused} refused");
    for length in [0, 1, 7, 40, 400, 4000] {
        let random: Vec<u8> = (0..length).map(|_| numbers.next() as u8).collect();
        assert!(matches!(decode(&sealed(&random)), Err(StatisticsError::Wrong(_))));
        assert!(decode(&random).is_err());
    }
}

#[test]
fn counts_that_cannot_be_are_refused_before_anything_is_made_of_them() {
    let process = Process { command: String::new(), program: String::new(), ..Process::default() };
    let empty = encode(&Statistics { process, ..Statistics::default() }, 1);
    let body = &empty[24..empty.len() - 16];
    let mut many = body.to_vec();
    *many.last_mut().expect("the number of cards") = 255;
    assert!(matches!(decode(&sealed(&many)), Err(StatisticsError::Wrong("it has too many cards"))));
    let mut long = body.to_vec();
    long[28..30].copy_from_slice(&u16::MAX.to_le_bytes());
    assert!(matches!(decode(&sealed(&long)), Err(StatisticsError::Wrong("a text is too long"))));
    let mut trailing = body.to_vec();
    trailing.push(0);
    assert!(matches!(decode(&sealed(&trailing)), Err(StatisticsError::Wrong("it goes on after its end"))));
    let mut header = empty.clone();
    header[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(decode(&header), Err(StatisticsError::Wrong("its length"))));
    let mut newer = empty;
    newer[8] = 9;
    let error = decode(&newer).expect_err("another version").to_string();
    assert!(error.contains("version 9") && error.contains("version 2"), "{error}");
}

#[test]
fn a_reader_never_sees_half_of_a_page() {
    let temp = Temp::new("torn");
    let folder = temp.own();
    let process = Process::current("gapless test").expect("/proc");
    let mut writer = Writer::create(&folder, &process).expect("a statistics file");
    let path = writer.path().to_owned();
    let make = move |k: u64| {
        let sample = Sample { time: k, live: k, reserved: k, allocations: k };
        let mut statistics = Statistics::new(process.clone());
        statistics.time = k;
        // As long as statistics files get in practice, so that reader and writer meet.
        let card = Card { live: k, reserved: k, samples: vec![sample; layout::SAMPLES], ..Card::default() };
        statistics.cards = vec![card; 8];
        statistics
    };
    writer.write(&make(0)).expect("written");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for k in 1.. {
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                writer.write(&make(k)).expect("written");
            }
        });
        let (mut last, mut whole) = (0, 0);
        for _ in 0..2000 {
            let statistics = match read(&path) {
                Ok(statistics) => statistics,
                // A writer without a pause may win every time.
                Err(StatisticsError::Torn) => continue,
                Err(other) => panic!("{other}"),
            };
            let k = statistics.time;
            assert!(k >= last, "time goes on");
            (last, whole) = (k, whole + 1);
            for card in &statistics.cards {
                assert!(card.live == k && card.samples.iter().all(|sample| sample.allocations == k));
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(whole > 0);
    });
}

#[test]
fn pages_of_processes_that_are_gone_are_removed() {
    let temp = Temp::new("gone");
    let folder = temp.own();
    let own = Process::current("gapless test").expect("/proc");
    let put = |process: Process, time: u64| {
        let mut writer = Writer::create(&folder, &process).expect("a statistics file");
        writer.write(&Statistics { time, ..Statistics::new(process) }).expect("written");
        writer.path().to_owned()
    };
    let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a process");
    let start = process::start_of(child.id()).expect("it lives");
    let living = put(Process { pid: child.id(), start, ..own.clone() }, now());
    // Its number now belongs to this process.
    let reused = put(Process { start: own.start - 1, ..own.clone() }, now());
    let elsewhere = Process { namespace: own.namespace + 1, ..own.clone() };
    let fresh = put(elsewhere.clone(), now());
    let silent = put(Process { pid: own.pid + 1, ..elsewhere }, now() - 60_000_000);
    let pids =
        |files: &[Statistics]| files.iter().map(|statistics| statistics.process.pid).collect::<Vec<_>>();
    let mut expected = vec![child.id(), own.pid];
    expected.sort_unstable();
    assert_eq!(pids(&read_all(&[temp.path("own")]).files), expected);
    assert!(!reused.exists());
    assert!(living.exists() && fresh.exists() && silent.exists(), "who cannot be asked is left alone");
    child.kill().expect("a signal");
    child.wait().expect("its end");
    let again = put(Process { start: own.start - 2, ..own.clone() }, now());
    gapless_stats::reader::sweep(&folder);
    assert!(!again.exists() && !living.exists(), "a writer removes them too");
    assert!(fresh.exists() && silent.exists());
    assert_eq!(pids(&read_all(&[temp.path("own")]).files), [own.pid]);
}

#[test]
fn files_that_are_no_pages_are_told_and_left_alone() {
    let temp = Temp::new("strange");
    let folder = temp.own();
    let own = Process::current("gapless test").expect("/proc");
    let name = |start_of: &Process| folder.path().join(start_of.file_name());
    fs::write(folder.path().join("notes.txt"), "hello").expect("a file");
    fs::write(name(&own), "GAPLPAGE but no more").expect("a file");
    assert!(read_all(&[temp.path("own")]).files.is_empty());
    fs::write(name(&own), "something else entirely").expect("a file");
    let all = read_all(&[temp.path("own")]);
    assert!(all.files.is_empty());
    assert!(matches!(all.unreadable.as_slice(), [(_, StatisticsError::NotStatistics)]), "{all:?}");
    // A statistics file of another process under this name.
    let other = Process { pid: own.pid + 1, ..own.clone() };
    fs::write(name(&own), encode(&Statistics::new(other), 1)).expect("a file");
    assert!(matches!(read_all(&[temp.path("own")]).unreadable.as_slice(), [(_, StatisticsError::Wrong(_))]));
    let huge = fs::File::create(name(&own)).expect("a file");
    huge.set_len(1 << 40).expect("a hole");
    assert!(matches!(
        read_all(&[temp.path("own")]).unreadable.as_slice(),
        [(_, StatisticsError::TooLarge(_))]
    ));
    fs::remove_file(name(&own)).expect("gone");
    symlink("/dev/zero", name(&own)).expect("a link");
    assert!(matches!(
        read_all(&[temp.path("own")]).unreadable.as_slice(),
        [(_, StatisticsError::NotStatistics)]
    ));
    assert!(folder.path().join("notes.txt").exists() && name(&own).is_symlink());
}

#[test]
fn a_folder_that_is_not_ours_alone_is_refused() {
    let temp = Temp::new("folders");
    let open = temp.path("open");
    fs::create_dir(&open).expect("a folder");
    for mode in [0o755, 0o770, 0o707, 0o710] {
        fs::set_permissions(&open, fs::Permissions::from_mode(mode)).expect("its mode");
        let error = Folder::make(std::slice::from_ref(&open)).expect_err("open to others");
        assert!(error.to_string().contains(&format!("{mode:03o}")), "{error}");
        assert!(matches!(read_all(std::slice::from_ref(&open)).refused.as_slice(), [FolderError::Open(..)]));
    }
    let link = temp.path("link");
    symlink(temp.own().path(), &link).expect("a link");
    assert!(matches!(Folder::make(std::slice::from_ref(&link)), Err(FolderError::NotAFolder(_))));
    let file = temp.path("file");
    fs::write(&file, "").expect("a file");
    assert!(matches!(Folder::open(&file), Err(FolderError::NotAFolder(_))));
    // Only root can give a folder away, and every machine has one of root's.
    let foreign = if process::user() == Some(0) {
        let path = temp.path("foreign");
        fs::create_dir(&path).expect("a folder");
        std::os::unix::fs::chown(&path, Some(12345), None).expect("root may");
        path
    } else {
        PathBuf::from("/usr")
    };
    let error = Folder::open(&foreign).expect_err("somebody else's");
    assert!(error.to_string().contains("belongs to user"), "{error}");
    // The next candidate is used.
    let next = temp.path("next");
    let folder = Folder::make(&[open, link, next.clone()]).expect("the third");
    assert_eq!(folder.path(), next);
}
