//! Generated files of small tensors: every type, sizes around roundings, empty tensors and scalars, bits of all
//! sorts, equal tensors, names and metadata in any script, headers with spaces behind them.

use std::path::Path;

/// Xorshift: the same files on every machine.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }
}

/// Types and the bits of a value.
const TYPES: [(&str, u64); 21] = [
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
    ("C64", 64),
    ("F32", 32),
    ("I32", 32),
    ("U32", 32),
    ("F16", 16),
    ("BF16", 16),
    ("I16", 16),
    ("U16", 16),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I8", 8),
    ("U8", 8),
    ("BOOL", 8),
    ("F6_E2M3", 6),
    ("F4", 4),
];
const SIZES: [u64; 20] =
    [0, 1, 2, 3, 31, 63, 64, 65, 127, 128, 129, 500, 512, 1000, 1023, 1024, 1025, 1088, 2047, 4100];
const NAMES: [&str; 8] =
    ["model.layers.0.weight", "a/b/c", "ä ö ü", "权重", "tab\\tand \\\"quotes\\\"", "🙂", "..", "__metadata"];

fn data(rng: &mut Rng, of: &str, bytes: u64) -> Vec<u8> {
    let sort = rng.below(8);
    let mut data = Vec::with_capacity(bytes as usize + 8);
    while (data.len() as u64) < bytes {
        let z = rng.next();
        let exponent = 121 - (z >> 40 | 1 << 12).trailing_zeros() as u64;
        let upper = (z & 0x8000 | exponent << 7 | z >> 16 & 0x7f) as u16;
        match (sort, of) {
            (0, _) => data.extend_from_slice(&z.to_le_bytes()),
            (1, _) => data.push(0),
            (2, _) => data.push([1, 1, 1, 200][(z % 4) as usize]),
            // NaN with payloads, infinities, both zeros, denormals.
            (3, "BF16") => data
                .extend_from_slice(&[0x7f81u16, 0xffff, 0x7f80, 0x8000, 1][(z % 5) as usize].to_le_bytes()),
            (3, "F16") => data
                .extend_from_slice(&[0x7c01u16, 0xffff, 0x7c00, 0x8000, 1][(z % 5) as usize].to_le_bytes()),
            (4, _) if z.is_multiple_of(3) => data.extend_from_slice(&[0; 8]),
            (_, "BF16") => data.extend_from_slice(&upper.to_le_bytes()),
            (_, "F32") => {
                data.extend_from_slice(&[(z >> 24) as u8, (z >> 32) as u8, upper as u8, (upper >> 8) as u8])
            }
            _ => data.extend_from_slice(&((z >> 20) as u16 & 0x3fff).to_le_bytes()),
        }
    }
    data.truncate(bytes as usize);
    data
}

/// A whole file. Each seed gives another file.
pub(crate) fn file(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let metadata = ["", r#""__metadata__":{},"#, r#""__metadata__":{"format":"pt","日本":"ü\n"},"#]
        [rng.below(3) as usize];
    let (mut entries, mut all, mut kept) = (String::new(), Vec::new(), Vec::<(usize, Vec<u8>)>::new());
    // Half of the files have one type in changing sizes, which a reused encoder must handle; the others are mixed.
    let only = (rng.below(2) == 0).then(|| rng.below(TYPES.len() as u64) as usize);
    for number in 0..1 + rng.below(24) {
        let of = only.unwrap_or_else(|| rng.below(TYPES.len() as u64) as usize);
        let (dtype, bits) = TYPES[of];
        // Tensors of 6 and 4 bits must end with a whole byte.
        let count = SIZES[rng.below(SIZES.len() as u64) as usize] * if bits < 8 { 4 } else { 1 };
        let shape = match rng.below(4) {
            0 if count == 1 => String::new(),
            1 => format!("1,{count}"),
            2 if count.is_multiple_of(4) => format!("4,{}", count / 4),
            _ => format!("{count}"),
        };
        let bytes = count * bits / 8;
        let equal = kept.iter().find(|(kind, data)| *kind == of && data.len() as u64 == bytes);
        let data = match equal {
            Some((_, equal)) if rng.below(3) == 0 => equal.clone(),
            _ => data(&mut rng, dtype, bytes),
        };
        let name = NAMES[rng.below(NAMES.len() as u64) as usize];
        let begin = all.len();
        all.extend_from_slice(&data);
        entries.push_str(&format!(
            "\"{name}{number}\":{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{begin},{}]}},",
            all.len()
        ));
        kept.push((of, data));
    }
    let header =
        format!("{{{metadata}{}}}{}", entries.trim_end_matches(','), " ".repeat(rng.below(9) as usize));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&all);
    file
}

/// Packs, checks and unpacks the file of a seed in `folder`, with `threads` threads. An error tells the difference.
pub(crate) fn round(folder: &Path, seed: u64, threads: usize) -> Result<gapless_weights::Done, String> {
    let bytes = file(seed);
    let at = |name: &str| folder.join(name);
    let fail = |what: &'static str| {
        move |error: gapless_weights::Error| format!("file {seed}, {threads} threads: {what}: {error}")
    };
    std::fs::write(at("a"), &bytes).map_err(|error| error.to_string())?;
    let done = gapless_weights::pack(&at("a"), &at("b"), threads).map_err(fail("pack"))?;
    let checked = gapless_weights::verify(&at("b"), threads).map_err(fail("verify"))?;
    if let Some(damage) = checked.damage.first() {
        return Err(format!("file {seed}, {threads} threads: verify: {damage}"));
    }
    gapless_weights::unpack(&at("b"), &at("c"), threads, false).map_err(fail("unpack"))?;
    let again = std::fs::read(at("c")).map_err(|error| error.to_string())?;
    if again == bytes { Ok(done) } else { Err(format!("file {seed}, {threads} threads: other bytes")) }
}
