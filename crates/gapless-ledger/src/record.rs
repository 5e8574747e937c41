//! An entry as bytes, and the head of the file. All numbers are little-endian.
//!
//! ```text
//! head    0 "gaplessL"   8 version   16 capacity   24 check            (128 bytes; the rest is 0)
//! entry   0 check   8 pid, u32   12 flags, u32: 1 used, 2 borrows   16 start   24 space   32 limit
//!        40 held   48 wants   56 outside   64 length of the name, u8   65 name        (128 bytes; the rest is 0)
//! ```
//!
//! Both are written by one call each, and do not cross a page. A torn record fails its check and counts as empty.
//! That is safe, because a live process writes its whole entry with each change.

use crate::book::Entry;
use crate::processes::Who;
use crate::share::LONGEST;

/// Bytes of the head, and of each entry.
pub const SIZE: usize = 128;
const MAGIC: &[u8; 8] = b"gaplessL";
const VERSION: u64 = 1;
const USED: u32 = 1;
const BORROWS: u32 = 2;

/// The bytes of the head or of an entry.
pub type Record = [u8; SIZE];

/// A checksum, multiplied and folded word by word.
fn check_of(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0x9e37_79b9_7f4a_7c15, |sum: u64, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let mixed = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 32)
    })
}

fn put(record: &mut Record, at: usize, value: u64) {
    record[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(record: &Record, at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&record[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The head of a card's ledger.
#[must_use]
pub fn head(capacity: u64) -> Record {
    let mut record = [0; SIZE];
    record[..8].copy_from_slice(MAGIC);
    put(&mut record, 8, VERSION);
    put(&mut record, 16, capacity);
    let check = check_of(&record[..24]);
    put(&mut record, 24, check);
    record
}

/// The capacity in a head; `None`: it is not a head of this version.
#[must_use]
pub fn capacity_of(record: &Record) -> Option<u64> {
    let is_head =
        record[..8] == *MAGIC && get(record, 8) == VERSION && get(record, 24) == check_of(&record[..24]);
    is_head.then(|| get(record, 16))
}

/// An entry, or an empty place.
#[must_use]
pub fn write(entry: Option<&Entry>) -> Record {
    let mut record = [0; SIZE];
    let Some(entry) = entry else { return record };
    let name = &entry.name.as_bytes()[..entry.name.len().min(LONGEST)];
    let flags = USED | if entry.borrow { BORROWS } else { 0 };
    put(&mut record, 8, u64::from(entry.who.pid) | u64::from(flags) << 32);
    for (at, value) in [entry.who.start, entry.who.space, entry.limit, entry.held, entry.wants, entry.outside]
        .into_iter()
        .enumerate()
    {
        put(&mut record, 16 + 8 * at, value);
    }
    record[64] = name.len() as u8;
    record[65..65 + name.len()].copy_from_slice(name);
    let check = check_of(&record[8..]);
    put(&mut record, 0, check);
    record
}

/// The entry in a record; `None`: an empty place, or a torn one.
#[must_use]
pub fn read(record: &Record) -> Option<Entry> {
    let flags = (get(record, 8) >> 32) as u32;
    if flags & USED == 0 || get(record, 0) != check_of(&record[8..]) {
        return None;
    }
    let name = record.get(65..65 + usize::from(record[64]))?;
    Some(Entry {
        who: Who { pid: get(record, 8) as u32, start: get(record, 16), space: get(record, 24) },
        name: String::from_utf8(name.to_vec()).ok()?,
        limit: get(record, 32),
        borrow: flags & BORROWS != 0,
        held: get(record, 40),
        wants: get(record, 48),
        outside: get(record, 56),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            who: Who { pid: 4_000_000_000, start: u64::MAX, space: 4_026_531_836 },
            name: "n".repeat(LONGEST),
            limit: 1 << 60,
            borrow: true,
            held: 123_456_789,
            wants: 7,
            outside: 99,
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        for entry in [entry(), Entry { name: "a".into(), borrow: false, wants: 0, ..entry() }] {
            assert_eq!(read(&write(Some(&entry))), Some(entry));
        }
        assert_eq!(read(&write(None)), None);
        assert_eq!(capacity_of(&head(143 << 30)), Some(143 << 30));
    }

    #[test]
    fn a_record_of_which_any_part_is_old_is_no_record() {
        let (old, new) = (write(Some(&Entry { held: 5, ..entry() })), write(Some(&entry())));
        for before in [write(None), old] {
            for cut in 1..SIZE {
                let mut torn = before;
                torn[..cut].copy_from_slice(&new[..cut]);
                if torn != before && torn != new {
                    assert_eq!(read(&torn), None, "{cut}");
                }
            }
        }
    }

    #[test]
    fn every_changed_bit_is_seen() {
        let (record, first) = (write(Some(&entry())), head(1 << 37));
        for bit in 0..8 * SIZE {
            let mut wrong = record;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&wrong), None, "bit {bit}");
            if bit < 8 * 32 {
                let mut wrong = first;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(capacity_of(&wrong), None, "bit {bit} of the head");
            }
        }
    }
}
