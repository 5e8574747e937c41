//! From an instruction of a Python code object to its line. Releases differ: pairs of bytes in 3.9 (`co_lnotab`),
//! ranges in 3.10 (PEP 626), entries with columns from 3.11 on (PEP 657). Instructions are counted in bytes.

/// Beginnings of lines, in order of instructions.
#[derive(Debug, Default)]
pub(super) struct Lines {
    first: u32,
    /// First instruction of a range, and its line; 0: none.
    ranges: Vec<(u32, u32)>,
}

impl Lines {
    pub(super) fn new(minor: u32, first: u32, table: &[u8]) -> Lines {
        let ranges = match minor {
            0..=9 => pairs(first, table),
            10 => deltas(first, table),
            _ => entries(first, table),
        };
        Lines { first, ranges }
    }

    /// The line of an instruction; that of the function if the table has none.
    pub(super) fn at(&self, instruction: u32) -> u32 {
        // A frame that has not begun stands one before its first instruction.
        let instruction = if instruction > u32::MAX / 2 { 0 } else { instruction };
        let behind = self.ranges.partition_point(|(start, _)| *start <= instruction);
        let known = self.ranges[..behind].iter().rev().map(|(_, line)| *line).find(|line| *line > 0);
        known.unwrap_or(self.first)
    }
}

/// 3.9: differences of bytes and of lines.
fn pairs(first: u32, table: &[u8]) -> Vec<(u32, u32)> {
    let (mut at, mut line) = (0u32, i64::from(first));
    let mut found = vec![(0, first)];
    for pair in table.chunks_exact(2) {
        at = at.saturating_add(u32::from(pair[0]));
        line += i64::from(pair[1] as i8);
        found.push((at, positive(line)));
    }
    found
}

/// 3.10: bytes of the range, and the difference of lines; -128: no line.
fn deltas(first: u32, table: &[u8]) -> Vec<(u32, u32)> {
    let (mut at, mut line) = (0u32, i64::from(first));
    let mut found = Vec::new();
    for pair in table.chunks_exact(2) {
        let delta = pair[1] as i8;
        if delta != i8::MIN {
            line += i64::from(delta);
        }
        found.push((at, if delta == i8::MIN { 0 } else { positive(line) }));
        at = at.saturating_add(u32::from(pair[0]));
    }
    found
}

/// 3.11 and later: an entry begins with a byte that has its highest bit; four bits of kind, three of length.
fn entries(first: u32, table: &[u8]) -> Vec<(u32, u32)> {
    let (mut at, mut line) = (0u32, i64::from(first));
    let mut found = Vec::new();
    let mut bytes = table.iter().copied().peekable();
    while let Some(head) = bytes.next() {
        let kind = head >> 3 & 15;
        let rest: Vec<u8> = std::iter::from_fn(|| bytes.next_if(|byte| byte & 0x80 == 0)).collect();
        line += match kind {
            10..=12 => i64::from(kind) - 10,
            13 | 14 => signed(&rest),
            _ => 0,
        };
        found.push((at, if kind == 15 { 0 } else { positive(line) }));
        at = at.saturating_add((u32::from(head & 7) + 1) * 2);
    }
    found
}

/// A number in groups of six bits, the lowest first; the lowest bit of all is its sign.
fn signed(bytes: &[u8]) -> i64 {
    let mut value = 0u64;
    for (place, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 63) << (6 * place);
        if byte & 64 == 0 {
            break;
        }
    }
    let size = (value >> 1) as i64;
    if value & 1 == 1 { -size } else { size }
}

fn positive(line: i64) -> u32 {
    u32::try_from(line).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of `def f(x):\n    y = x + 1\n\n    return (y,\n            x)`, as each release compiles it at line 10.
    #[test]
    fn lines_are_those_of_each_release() {
        let old = Lines::new(9, 10, &[0, 1, 8, 2, 2, 1, 2, 255]);
        assert_eq!([0, 7, 8, 10, 12].map(|at| old.at(at)), [11, 11, 13, 14, 13]);
        let ten = Lines::new(10, 10, &[8, 1, 2, 2, 2, 1, 2, 255, 2, 128]);
        assert_eq!([0, 7, 8, 10, 12].map(|at| ten.at(at)), [11, 11, 13, 14, 13]);
        assert_eq!(ten.at(14), 13, "no line of its own: the one before");
        // RESUME at line 10; 5 units one line further; 1 unit two further; 1 unit, a long entry, one further.
        let new = Lines::new(11, 10, &[0x80, 0, 0xdc, 8, 9, 0xe0, 11, 12, 0xf0, 2, 0, 12, 13]);
        assert_eq!([0, 2, 10, 12, 14].map(|at| new.at(at)), [10, 11, 11, 13, 14]);
        assert_eq!(new.at(u32::MAX - 1), 10, "a frame that has not begun");
    }

    #[test]
    fn a_table_of_any_bytes_gives_some_line() {
        let mut seed = 9u64;
        for minor in 9..15 {
            for _ in 0..500 {
                let mut byte = || {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (seed >> 56) as u8
                };
                let table: Vec<u8> = (0..byte() % 60).map(|_| byte()).collect();
                let lines = Lines::new(minor, 7, &table);
                (0..200).for_each(|at| _ = lines.at(at));
            }
        }
    }
}
