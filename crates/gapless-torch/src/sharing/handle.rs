//! The bytes by which one process describes memory to another.
//!
//! They begin as PyTorch's do: a version, a kind, and the data of that kind.
//!
//! | kind | what follows | who writes it |
//! |---|---|---|
//! | `c` | a handle of CUDA's IPC, of memory that `cudaMalloc` gave | PyTorch; Gapless for supplied pools |
//! | `e` | a header, then a file or a fabric handle a page, all of one size | PyTorch; Gapless with `descriptors` |
//! | `g` | nothing | Gapless without `descriptors` |
//!
//! What Gapless writes for pages goes on with a part that PyTorch does not read ([`Passed`]): the socket through which
//! another Gapless gets any number of pages, of any sizes. All numbers have this machine's byte order.

use super::rest::Rest;
use gapless_cuda::shared_pages::SharedPage;

/// From PyTorch 2.13 on the header of `e` names the kind of its handles, and the version is one more.
const WITH_KIND: u8 = 3;
const WITHOUT_KIND: u8 = 2;
const PLAIN: u8 = b'c';
const PAGES: u8 = b'e';
const OWN: u8 = b'g';
/// The beginning of the part that only Gapless reads.
const MARK: [u8; 8] = *b"gapless1";
/// Kinds of handles in a header of 2.13.
const DESCRIPTORS: u64 = 1;
const FABRIC: u64 = 2;
/// More bytes than any card has, so that sums of sizes do not overflow.
const MOST_BYTES: u64 = 1 << 50;
const MOST_PAGES: usize = 1 << 20;
const GRANULE: u64 = 2 << 20;

/// Pages that a socket hands out: the socket's token, and the pages' numbers there, with their sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) token: [u8; 16],
    pub(super) pages: Vec<(SharedPage, u64)>,
}

/// Pages of one size, in PyTorch's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plain {
    pub(super) process: i32,
    pub(super) size: u64,
    pub(super) files: Files,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// Open in the process that wrote them.
    Descriptors(Vec<i32>),
    Fabric(Vec<[u8; 64]>),
}

/// Contents of a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shared {
    /// Memory that `cudaMalloc` gave.
    Whole([u8; 64]),
    /// Pages, which a reader can get in one way or in both.
    Pages { passed: Option<Passed>, plain: Option<Plain> },
}

/// The handle of memory that `cudaMalloc` gave.
pub(super) fn of_whole(handle: [u8; 64], newer: bool) -> Vec<u8> {
    let mut bytes = vec![version(newer), PLAIN];
    bytes.extend_from_slice(&handle);
    bytes
}

/// The handle of pages, with `descriptors` if a reader without Gapless can get them. `newer`: for PyTorch 2.13 and
/// later.
pub(super) fn of_pages(passed: &Passed, process: u32, descriptors: Option<&[i32]>, newer: bool) -> Vec<u8> {
    let mut bytes = vec![version(newer), if descriptors.is_some() { PAGES } else { OWN }];
    if let Some(files) = descriptors {
        let size = passed.pages.first().map_or(0, |page| page.1);
        // A process number has 32 bits, and the next field begins at 64. The bits between are cleared.
        for field in [u64::from(process), size, files.len() as u64] {
            bytes.extend_from_slice(&field.to_ne_bytes());
        }
        if newer {
            bytes.extend_from_slice(&DESCRIPTORS.to_ne_bytes());
        }
        files.iter().for_each(|file| bytes.extend_from_slice(&file.to_ne_bytes()));
    }
    bytes.extend_from_slice(&MARK);
    bytes.extend_from_slice(&passed.token);
    bytes.extend_from_slice(&(passed.pages.len() as u64).to_ne_bytes());
    for (page, size) in &passed.pages {
        bytes.extend_from_slice(&page.0.to_ne_bytes());
        bytes.extend_from_slice(&size.to_ne_bytes());
    }
    bytes
}

fn version(newer: bool) -> u8 {
    if newer { WITH_KIND } else { WITHOUT_KIND }
}

impl Rest<'_> {
    /// Number of items of `size` bytes that follow.
    fn count(&mut self, size: usize) -> Result<usize, String> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        let fits = count.checked_mul(size).is_some_and(|bytes| bytes <= self.0.len());
        if !fits || count == 0 || count > MOST_PAGES {
            return Err(format!("it names {count} pages in {} bytes", self.0.len()));
        }
        Ok(count)
    }
}

/// Reads a handle.
///
/// # Errors
/// If the bytes are no valid handle. The text says why.
pub(super) fn read(bytes: &[u8]) -> Result<Shared, String> {
    // PyTorch wrote this before its handles had versions.
    if let Ok(handle) = bytes.try_into() {
        return Ok(Shared::Whole(handle));
    }
    let mut rest = Rest(bytes);
    let [version, kind] = rest.take()?;
    if version > WITH_KIND {
        return Err(format!(
            "its version is {version}, and this release of gapless reads versions up to {WITH_KIND}: it comes from a newer PyTorch"
        ));
    }
    match kind {
        PLAIN => rest.take().map(Shared::Whole),
        PAGES => {
            let plain = plain(&mut rest, version >= WITH_KIND)?;
            let passed = if rest.0.starts_with(&MARK) { Some(passed(&mut rest)?) } else { None };
            Ok(Shared::Pages { passed, plain: Some(plain) })
        }
        OWN => passed(&mut rest).map(|passed| Shared::Pages { passed: Some(passed), plain: None }),
        other => Err(format!("its kind is {other:#x}, which is none of c, e and g")),
    }
}

fn plain(rest: &mut Rest<'_>, has_kind: bool) -> Result<Plain, String> {
    // Only the lower half: PyTorch does not always clear the upper one.
    let process = rest.number()? as i32;
    let size = checked_size(rest.number()?)?;
    let count = rest.number()?;
    let kind = if has_kind { rest.number()? & u64::from(u32::MAX) } else { DESCRIPTORS };
    let item = match kind {
        DESCRIPTORS => 4,
        FABRIC => 64,
        other => {
            return Err(format!("its pages are of kind {other}, which is neither a file nor of a fabric"));
        }
    };
    let has = (rest.0.len() / item) as u64;
    if count == 0 || count > has || count > MOST_PAGES as u64 || size.saturating_mul(count) > MOST_BYTES {
        return Err(format!("it names {count} pages of {size} bytes in {} bytes", rest.0.len()));
    }
    let files = if kind == DESCRIPTORS {
        Files::Descriptors((0..count).map(|_| rest.take().map(i32::from_ne_bytes)).collect::<Result<_, _>>()?)
    } else {
        Files::Fabric((0..count).map(|_| rest.take()).collect::<Result<_, _>>()?)
    };
    Ok(Plain { process, size, files })
}

fn passed(rest: &mut Rest<'_>) -> Result<Passed, String> {
    if rest.take()? != MARK {
        return Err("it was written by another release of gapless".to_owned());
    }
    let token = rest.take()?;
    let count = rest.count(16)?;
    let mut pages = Vec::with_capacity(count);
    let mut total = 0;
    for _ in 0..count {
        let (page, size) = (SharedPage(rest.number()?), checked_size(rest.number()?)?);
        total += size;
        if total > MOST_BYTES {
            return Err("its pages are more than any card has".to_owned());
        }
        pages.push((page, size));
    }
    Ok(Passed { token, pages })
}

fn checked_size(size: u64) -> Result<u64, String> {
    if size == 0 || !size.is_multiple_of(GRANULE) || size > MOST_BYTES {
        return Err(format!("it names a page of {size} bytes: pages have a multiple of 2 MiB"));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(sizes: &[u64]) -> Passed {
        let pages = sizes.iter().zip(7..).map(|(size, page)| (SharedPage(page), *size)).collect();
        Passed { token: *b"0123456789abcdef", pages }
    }

    /// A handle of each kind that is written.
    fn written() -> Vec<(Vec<u8>, Shared)> {
        let (even, odd) = (example(&[4 * GRANULE; 3]), example(&[GRANULE, 8 * GRANULE]));
        let mut all = Vec::new();
        for newer in [false, true] {
            all.push((of_whole([5; 64], newer), Shared::Whole([5; 64])));
            let files = Files::Descriptors(vec![11, 12, 13]);
            let plain = Some(Plain { process: 77, size: 4 * GRANULE, files });
            let both = of_pages(&even, 77, Some(&[11, 12, 13]), newer);
            all.push((both, Shared::Pages { passed: Some(even.clone()), plain }));
            let own = of_pages(&odd, 77, None, newer);
            all.push((own, Shared::Pages { passed: Some(odd.clone()), plain: None }));
        }
        all.push((vec![9; 64], Shared::Whole([9; 64])));
        all
    }

    #[test]
    fn what_is_written_is_read() {
        for (bytes, shared) in written() {
            assert_eq!(read(&bytes), Ok(shared));
        }
    }

    /// The layout of PyTorch's header, read at the offsets of its own structure.
    #[test]
    fn pages_of_one_size_are_told_as_pytorch_tells_them() {
        let passed = example(&[GRANULE; 2]);
        let old = of_pages(&passed, 0x1234, Some(&[8, 9]), false);
        let at = |bytes: &[u8], from: usize| {
            u64::from_ne_bytes(bytes[from..from + 8].try_into().expect("8 bytes"))
        };
        assert_eq!((old[0], old[1], at(&old, 2), at(&old, 10), at(&old, 18)), (2, b'e', 0x1234, GRANULE, 2));
        assert_eq!(old[26..34], [8i32.to_ne_bytes(), 9i32.to_ne_bytes()].concat());
        let new = of_pages(&passed, 0x1234, Some(&[8, 9]), true);
        assert_eq!((new[0], at(&new, 26), &new[34..42]), (3, 1, &old[26..34]));
        // Without the part that only Gapless reads, it is PyTorch's own.
        let plain = Plain { process: 0x1234, size: GRANULE, files: Files::Descriptors(vec![8, 9]) };
        for bytes in [&old[..34], &new[..42]] {
            assert_eq!(read(bytes), Ok(Shared::Pages { passed: None, plain: Some(plain.clone()) }));
        }
        let mut fabric = new[..26].to_vec();
        fabric.extend_from_slice(&2u64.to_ne_bytes());
        fabric.extend_from_slice(&[3; 128]);
        let Ok(Shared::Pages { plain: Some(plain), .. }) = read(&fabric) else { panic!("a fabric handle") };
        assert_eq!(plain.files, Files::Fabric(vec![[3; 64]; 2]));
    }

    #[test]
    fn bad_handles_are_refused_and_never_believed() {
        for (text, bytes) in [
            ("it is cut off", vec![2]),
            ("its version is 4", vec![4, b'e', 0]),
            ("its kind is 0x78", vec![2, b'x']),
            ("another release of gapless", [&[2, b'g'][..], b"gapless9", &[0; 40]].concat()),
        ] {
            let error = read(&bytes).expect_err(text);
            assert!(error.contains(text), "{error}");
        }
        // Every cut and every changed byte gets an answer, in bounded memory, and no page has an impossible size.
        for (bytes, _) in written() {
            for end in 0..bytes.len() {
                let _ = read(&bytes[..end]);
            }
            for at in 0..bytes.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    if let Ok(Shared::Pages { passed, plain }) = read(&changed) {
                        let sizes = passed.iter().flat_map(|passed| passed.pages.iter().map(|page| page.1));
                        assert!(
                            sizes
                                .chain(plain.map(|plain| plain.size))
                                .all(|size| size.is_multiple_of(GRANULE) && size > 0)
                        );
                    }
                }
            }
        }
    }
}
