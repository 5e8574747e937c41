//! A small model with every kind of tensor, and the card of the tests.

#![allow(dead_code)] // no test binary uses all of it

use gapless_loader::{Catalogue, Load, LoadError, Piece, Progress, Settings, State};
use gapless_weights::stream::Directory;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

type Entry = (&'static str, &'static str, Vec<u64>, Vec<u8>);

/// Writes a safetensors file.
pub fn write(path: &Path, tensors: &[Entry]) {
    let (mut text, mut data) = (String::from("{\"__metadata__\":{\"format\":\"pt\"}"), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let (begin, end) = (data.len(), data.len() + bytes.len());
        text.push_str(&format!(
            ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]}}"
        ));
        data.extend_from_slice(bytes);
    }
    text.push('}');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(text.as_bytes());
    file.extend_from_slice(&data);
    fs::write(path, file).unwrap();
}

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Approximately a normal distribution: the sum of twelve uniform numbers.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum::<f32>() - 6.0
    }
}

fn bf16(values: usize, scale: impl Fn(usize) -> f32, random: &mut Random) -> Vec<u8> {
    (0..values)
        .flat_map(|k| ((random.normal() * scale(k)).to_bits() >> 16).to_le_bytes()[..2].to_vec())
        .collect()
}

/// The model's files, made once for each test.
pub struct Model {
    folder: tempfile::TempDir,
    tensors: Vec<Entry>,
}

impl Model {
    pub fn new() -> Model {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let n = 64 << 10;
        let mut odd = bf16(n + 5, |_| 0.02, &mut random);
        odd[..8].copy_from_slice(&[0xc0, 0x7f, 0x01, 0xff, 0x80, 0xff, 0x01, 0x00]); // NaNs, an infinity, a denormal
        let f32s = (0..n + 3).flat_map(|_| random.normal().to_le_bytes()).collect();
        let was_bf16 =
            (0..n).flat_map(|_| f32::from_bits(random.normal().to_bits() & 0xffff_0000).to_le_bytes());
        let was_bf16: Vec<u8> = was_bf16.collect();
        let noise: Vec<u8> = (0..5_000_000).map(|_| random.next() as u8).collect();
        let f16: Vec<u8> =
            (0..3 * n).flat_map(|_| (0x2000 + (random.next() as u16 & 0x97ff)).to_le_bytes()).collect();
        // Different scales: other shapes of the cascade, and chunks for which rANS or no compression is better.
        let mixed = bf16(6 * n, |k| [1e-3, 1.0, 1e-20, 30.0, 1e-2, 5e-4][k / n], &mut random);
        let spread = bf16(2 * n, |k| 2f32.powi((k % 37) as i32 - 18), &mut random);
        let zeros = vec![0; 3 * 2 * n];
        let sparse = (0..2 * n).flat_map(|k| if k % 8 == 0 { [k as u8, 0x3f] } else { [0, 0] }).collect();
        let wide = bf16(8 * n, |_| 0.05, &mut random);
        let tensors: Vec<Entry> = vec![
            ("odd", "BF16", vec![n as u64 + 5], odd),
            ("wide", "BF16", vec![8, n as u64], wide),
            ("mixed", "BF16", vec![6, n as u64], mixed),
            ("spread", "BF16", vec![2 * n as u64], spread),
            ("zeros", "BF16", vec![3 * n as u64], zeros),
            ("sparse", "BF16", vec![2 * n as u64], sparse),
            ("full", "F32", vec![n as u64 + 3], f32s),
            ("was_bf16", "F32", vec![n as u64], was_bf16),
            ("half", "F16", vec![3 * n as u64], f16),
            ("random", "I8", vec![5_000_000], noise),
            ("norm", "BF16", vec![40], (0..80).collect()),
            ("scalar", "F32", vec![], vec![1, 2, 3, 4]),
            ("empty", "F32", vec![0, 4], vec![]),
        ];
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("plain.safetensors"), &tensors);
        let model = Model { folder, tensors };
        gapless_weights::pack(&model.plain(), &model.packed(), 2).unwrap();
        model
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn plain(&self) -> PathBuf {
        self.folder.path().join("plain.safetensors")
    }

    pub fn packed(&self) -> PathBuf {
        self.folder.path().join("packed.safetensors")
    }

    pub fn bytes(&self, name: &str) -> &[u8] {
        &self.tensors.iter().find(|tensor| tensor.0 == name).expect("a tensor of the model").3
    }
}

/// The driver of the tests, compiled once from the kernel's own source.
fn driver() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("card-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let source = fs::read_to_string(here.join("src/kernel/decode.cu")).unwrap();
        let shared = "    extern __shared__ __align__(16) u8 tables[];\n";
        assert!(source.contains(shared));
        let source = source.replace(shared, "    u8* const tables = shared_memory;\n");
        fs::write(folder.join("decode_for_cpu.h"), source).unwrap();
        let library = folder.join("libcard.so").display().to_string();
        let include = format!("-I{}", folder.display());
        let file = here.join("tests/card/driver.cpp").display().to_string();
        let flags = [
            "-O2",
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            &include,
            "-o",
            &library,
            &file,
        ];
        let done = Command::new("g++").args(flags).output().expect("g++ is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        library
    })
}

/// Settings for host memory.
pub fn whole(threads: u32) -> Settings {
    Settings { device: -1, threads, ..Settings::default() }
}

pub type Loaded = Result<(Vec<Vec<u8>>, Progress), LoadError>;

/// Loads pieces into separate memory, with margins that must not change.
pub fn read_all(
    catalogue: &Arc<Catalogue>,
    pieces: &[Piece],
    is_card: bool,
    threads: u32,
    kernel: bool,
) -> Loaded {
    let device = if is_card { 0 } else { -1 };
    read_with(catalogue, pieces, Settings { device, ..whole(threads) }, kernel)
}

/// As `read_all`, with settings.
pub fn read_with(catalogue: &Arc<Catalogue>, pieces: &[Piece], settings: Settings, kernel: bool) -> Loaded {
    let (is_card, threads) = (settings.device >= 0, settings.threads);
    const MARGIN: usize = 256;
    let mut targets: Vec<Vec<u64>> = pieces
        .iter()
        .map(|piece| {
            vec![0x5a5a_5a5a_5a5a_5a5a; ((piece.end - piece.begin) as usize + 2 * MARGIN).div_ceil(8)]
        })
        .collect();
    let pieces: Vec<Piece> = pieces
        .iter()
        .zip(&mut targets)
        .map(|(piece, target)| Piece { target: target.as_mut_ptr() as u64 + MARGIN as u64, ..*piece })
        .collect();
    let mut staging = vec![0u64; threads as usize * gapless_loader::cuda::STAGING / 8];
    let settings = Settings { staging: if kernel { staging.as_mut_ptr() as u64 } else { 0 }, ..settings };
    let library = CString::new(if is_card { driver() } else { "" }).unwrap();
    // SAFETY: targets and staging memory live until the loading is dropped below, and nothing else uses them.
    let mut load = unsafe { Load::start(catalogue, &pieces, settings, is_card.then_some(&library)) }?;
    let state = load.wait(Duration::from_secs(300));
    let (error, progress) = (load.error(), load.progress());
    drop(load);
    if let Some(error) = error {
        assert_eq!(state, State::Failed);
        return Err(error);
    }
    assert_eq!(state, State::Done);
    let found = targets.iter().zip(&pieces).map(|(target, piece)| {
        let bytes: Vec<u8> = target.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let end = MARGIN + (piece.end - piece.begin) as usize;
        assert!(
            bytes[..MARGIN].iter().chain(&bytes[end..]).all(|byte| *byte == 0x5a),
            "a write outside of the target"
        );
        bytes[MARGIN..end].to_vec()
    });
    Ok((found.collect(), progress))
}

pub fn all(catalogue: &Catalogue) -> Vec<Piece> {
    let piece = |(at, place): (usize, &gapless_loader::catalogue::Place)| Piece {
        tensor: at as u64,
        begin: 0,
        end: catalogue.tensor(*place).bytes(),
        target: 0,
    };
    catalogue.tensors.iter().enumerate().map(piece).collect()
}

pub fn host(catalogue: &Arc<Catalogue>, threads: u32) -> Loaded {
    read_all(catalogue, &all(catalogue), false, threads, false)
}

pub fn card(catalogue: &Arc<Catalogue>, threads: u32, kernel: bool) -> Loaded {
    read_all(catalogue, &all(catalogue), true, threads, kernel)
}

pub fn ask(name: &std::ffi::CStr) -> usize {
    let library = gapless_cuda::library::Library::open(&CString::new(driver()).unwrap()).unwrap();
    // SAFETY: the test's driver has this function with this type.
    unsafe {
        std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn() -> usize>(library.find(name).unwrap())()
    }
}

/// Pinned bytes of this process that the driver allocated: now, and the most.
pub fn pinned() -> (usize, usize) {
    (ask(c"test_pinned"), ask(c"test_most_pinned"))
}

/// Bytes of this process's own memory that are pinned now, and the most of files.
pub fn registered() -> (usize, usize) {
    (ask(c"test_registered"), ask(c"test_most_registered"))
}

/// A copy of a packed file in which one tensor's planes disagree with its header, although the checksums are right.
pub fn write_lie(from: &Path, to: &Path, name: &str) {
    let reader = gapless_weights::Reader::open(from).unwrap();
    let (range, _) = reader.place(reader.find(name).unwrap());
    let mut file = fs::read(from).unwrap();
    let stream = &mut file[range.start as usize..range.end as usize];
    let mut directory = Directory::parse(stream, stream.len() as u64).unwrap();
    // Changes the number of values that level 1 passes on; one bit of its planes would do the same.
    let entry = directory.entries[2];
    let at = entry.start as usize;
    assert_eq!(stream[at], 3, "a chunk of planes");
    let plane = at + 64 + (64 << 10);
    stream[plane..plane + 16].fill(0xff);
    directory.entries[2].checksum = gapless_weights::checksum::checksum(&stream[at..at + entry.length]);
    let head = directory.to_bytes();
    stream[..head.len()].copy_from_slice(&head);
    without_sum(&mut file);
    fs::write(to, file).unwrap();
}

/// Turns a packed file into one of the first version, whose header has no sums that bind directories to names.
pub fn without_sum(file: &mut [u8]) {
    let sum = file.windows(13).position(|window| window == b"\"gapless.sum\"").unwrap();
    file[sum + 1..sum + 12].copy_from_slice(b"without_sum");
}

/// SHA-256, to compare a source with the one that was compiled.
pub fn sha256(bytes: &[u8]) -> String {
    const FIRST: [u32; 8] =
        [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
    // The fractional parts of the cube roots of the first 64 primes.
    let primes = (2u64..).filter(|n| (2..*n).all(|d| n % d != 0)).take(64);
    let keys: Vec<u32> = primes
        .map(|prime| {
            // The integer cube root of prime * 2^96 has the 32 bits below the point.
            let wanted = u128::from(prime) << 96;
            let (mut low, mut high) = (0u128, 1u128 << 36);
            while high - low > 1 {
                let middle = (low + high) / 2;
                if middle * middle * middle <= wanted { low = middle } else { high = middle }
            }
            low as u32
        })
        .collect();
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).next_multiple_of(64) - 8, 0);
    padded.extend_from_slice(&(bytes.len() as u64 * 8).to_be_bytes());
    let mut sums = FIRST;
    for block in padded.chunks(64) {
        let mut w: Vec<u32> = block.chunks(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])).collect();
        for k in 16..64 {
            let a = w[k - 15].rotate_right(7) ^ w[k - 15].rotate_right(18) ^ (w[k - 15] >> 3);
            let b = w[k - 2].rotate_right(17) ^ w[k - 2].rotate_right(19) ^ (w[k - 2] >> 10);
            w.push(w[k - 16].wrapping_add(a).wrapping_add(w[k - 7]).wrapping_add(b));
        }
        let mut v = sums;
        for k in 0..64 {
            let a = v[4].rotate_right(6) ^ v[4].rotate_right(11) ^ v[4].rotate_right(25);
            let choice = (v[4] & v[5]) ^ (!v[4] & v[6]);
            let one = v[7].wrapping_add(a).wrapping_add(choice).wrapping_add(keys[k]).wrapping_add(w[k]);
            let b = v[0].rotate_right(2) ^ v[0].rotate_right(13) ^ v[0].rotate_right(22);
            let two = b.wrapping_add((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
            v = [one.wrapping_add(two), v[0], v[1], v[2], v[3].wrapping_add(one), v[4], v[5], v[6]];
        }
        for (sum, v) in sums.iter_mut().zip(v) {
            *sum = sum.wrapping_add(v);
        }
    }
    sums.iter().map(|word| format!("{word:08x}")).collect()
}
