//! The bytes that describe shared memory to a reader: the card, the pages, the place of each tensor's storage in them,
//! and a text that the Python package reads.
//!
//! ```text
//! "gaplessW"  version u32  zero u32  card's UUID [u8; 16]
//! pages u64   (number u64, size u64) ...      the reader maps them side by side, in this order
//! places u64  (offset u64, size u64) ...      one for each storage, from the first page's beginning
//! length u64  text
//! ```
//!
//! All numbers have this machine's byte order, because a reader runs on the same machine. A reader checks all of it.

use super::rest::Rest;
use gapless_cuda::shared_pages::SharedPage;

const MARK: [u8; 8] = *b"gaplessW";
const VERSION: u32 = 1;
const GRANULE: u64 = 2 << 20;
/// More bytes than any card has, so that sums of sizes do not overflow.
const MOST_BYTES: u64 = 1 << 50;
const MOST_PAGES: u64 = 1 << 20;
const MOST_PLACES: u64 = 1 << 24;

/// Place of a storage in the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    pub(super) offset: u64,
    pub(super) size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) card: [u8; 16],
    pub(super) pages: Vec<(SharedPage, u64)>,
    pub(super) places: Vec<Storage>,
    pub(super) text: Vec<u8>,
}

impl Manifest {
    pub(super) fn total(&self) -> u64 {
        self.pages.iter().map(|page| page.1).sum()
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = MARK.to_vec();
        bytes.extend_from_slice(&VERSION.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.card);
        let mut put = |number: u64| bytes.extend_from_slice(&number.to_ne_bytes());
        put(self.pages.len() as u64);
        for (page, size) in &self.pages {
            put(page.0);
            put(*size);
        }
        put(self.places.len() as u64);
        for place in &self.places {
            put(place.offset);
            put(place.size);
        }
        put(self.text.len() as u64);
        bytes.extend_from_slice(&self.text);
        bytes
    }

    /// Reads a manifest that another process wrote.
    ///
    /// # Errors
    /// If it is invalid. The text says why.
    pub(super) fn read(bytes: &[u8]) -> Result<Manifest, String> {
        let mut rest = Rest(bytes);
        if rest.take()? != MARK {
            return Err("it does not begin as one".to_owned());
        }
        let version = u32::from_ne_bytes(rest.take()?);
        if version != VERSION {
            return Err(format!("its version is {version}, and this release of gapless reads {VERSION}"));
        }
        let _: [u8; 4] = rest.take()?;
        let card = rest.take()?;
        let mut total = 0;
        let pages = rest.pairs(MOST_PAGES, "pages")?;
        for &(_, size) in &pages {
            if size == 0 || !size.is_multiple_of(GRANULE) || size > MOST_BYTES {
                return Err(format!("it names a page of {size} bytes: pages have a multiple of 2 MiB"));
            }
            total += size;
            if total > MOST_BYTES {
                return Err("its pages are more than any card has".to_owned());
            }
        }
        let places = rest.pairs(MOST_PLACES, "storages")?;
        if let Some((offset, size)) =
            places.iter().find(|(offset, size)| offset.checked_add(*size).is_none_or(|end| end > total))
        {
            return Err(format!("it names {size} bytes at {offset} of {total}"));
        }
        let length = rest.number()?;
        if length != rest.0.len() as u64 {
            return Err(format!("its text has {} bytes instead of {length}", rest.0.len()));
        }
        Ok(Manifest {
            card,
            pages: pages.into_iter().map(|(page, size)| (SharedPage(page), size)).collect(),
            places: places.into_iter().map(|(offset, size)| Storage { offset, size }).collect(),
            text: rest.0.to_vec(),
        })
    }
}

impl Rest<'_> {
    fn pairs(&mut self, most: u64, what: &str) -> Result<Vec<(u64, u64)>, String> {
        let count = self.number()?;
        if count > most || count > self.0.len() as u64 / 16 {
            return Err(format!("it names {count} {what} in {} bytes", self.0.len()));
        }
        (0..count).map(|_| Ok((self.number()?, self.number()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Manifest {
        Manifest {
            card: *b"0123456789abcdef",
            pages: vec![(SharedPage(3), GRANULE), (SharedPage(9), 4 * GRANULE)],
            places: vec![
                Storage { offset: 512, size: 1000 },
                Storage { offset: GRANULE - 8, size: GRANULE },
                Storage { offset: 0, size: 0 },
            ],
            text: b"{\"tensors\":[]}".to_vec(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Manifest::read(&example().write()), Ok(example()));
    }

    #[test]
    fn bad_bytes_are_refused_in_words() {
        let change = |work: &dyn Fn(&mut Manifest)| {
            let mut manifest = example();
            work(&mut manifest);
            Manifest::read(&manifest.write()).expect_err("it is refused")
        };
        assert!(change(&|m| m.pages[0].1 = 5).contains("a page of 5 bytes"));
        assert!(change(&|m| m.pages[0].1 = 1 << 51).contains("a page of"));
        assert!(change(&|m| m.places[0].size = 5 * GRANULE).contains("at 512 of"));
        assert!(change(&|m| m.places[0].offset = u64::MAX).contains("it names 1000 bytes"));
        let bytes = example().write();
        for end in 0..bytes.len() {
            assert!(Manifest::read(&bytes[..end]).is_err(), "cut at {end}");
        }
        // Every changed byte gets an answer, in bounded memory, and no place lies outside of the pages.
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                if let Ok(manifest) = Manifest::read(&changed) {
                    assert!(manifest.places.iter().all(|p| p.offset + p.size <= manifest.total()));
                }
            }
        }
    }
}
