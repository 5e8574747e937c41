//! The loader's data of an object: its dynamic section, and the symbols that it offers to others.

use std::ffi::CStr;

#[repr(C)]
pub(crate) struct Dynamic {
    tag: i64,
    value: u64,
}

#[repr(C)]
pub(crate) struct Symbol {
    pub(crate) name: u32,
    pub(crate) kind: u8,
    other: u8,
    pub(crate) section: u16,
    pub(crate) value: u64,
    size: u64,
}

pub(crate) const DT_PLTRELSZ: i64 = 2;
pub(crate) const DT_STRTAB: i64 = 5;
pub(crate) const DT_SYMTAB: i64 = 6;
pub(crate) const DT_RELA: i64 = 7;
pub(crate) const DT_RELASZ: i64 = 8;
pub(crate) const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// A function, in the low half of [`Symbol::kind`].
const STT_FUNC: u8 = 2;

/// A loaded object, which stays loaded while this is used.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    pub(crate) base: usize,
    headers: &'a [libc::Elf64_Phdr],
    dynamic: *const Dynamic,
}

impl<'a> Object<'a> {
    /// The object of this description, if its file has this name.
    pub(crate) fn named(info: &'a libc::dl_phdr_info, name: &CStr) -> Option<Object<'a>> {
        if info.dlpi_name.is_null() {
            return None;
        }
        // SAFETY: the loader's name ends in a zero.
        let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        if path.rsplit(|byte| *byte == b'/').next() != Some(name.to_bytes()) {
            return None;
        }
        // SAFETY: the object's own headers, which stay while it is loaded.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let mut object = Object { base: info.dlpi_addr as usize, headers, dynamic: std::ptr::null() };
        object.dynamic = object.range(libc::PT_DYNAMIC)?.0 as *const Dynamic;
        Some(object)
    }

    /// Address and length of the first segment of a kind.
    pub(crate) fn range(&self, kind: u32) -> Option<(usize, usize)> {
        let found = self.headers.iter().find(|header| header.p_type == kind)?;
        Some((self.base + found.p_vaddr as usize, found.p_memsz as usize))
    }

    /// The loaded segment that contains an address: its start, its length and its rights.
    pub(crate) fn segment(&self, address: usize) -> Option<(usize, usize, i32)> {
        let offset = address.wrapping_sub(self.base) as u64;
        let holds =
            |h: &&libc::Elf64_Phdr| h.p_type == libc::PT_LOAD && offset.wrapping_sub(h.p_vaddr) < h.p_memsz;
        let found = self.headers.iter().find(holds)?;
        let pairs =
            [(libc::PF_R, libc::PROT_READ), (libc::PF_W, libc::PROT_WRITE), (libc::PF_X, libc::PROT_EXEC)];
        let rights = pairs.iter().filter(|(flag, _)| found.p_flags & flag != 0).map(|(_, right)| right);
        Some((
            self.base + found.p_vaddr as usize,
            found.p_memsz as usize,
            rights.fold(0, |all, right| all | right),
        ))
    }

    /// An entry of the dynamic section, as a number.
    pub(crate) fn number(&self, tag: i64) -> Option<usize> {
        let mut at = self.dynamic;
        loop {
            // SAFETY: `at` has not passed the end of the section, which is an entry of tag 0.
            let entry = unsafe { &*at };
            match entry.tag {
                0 => return None,
                found if found == tag => return Some(entry.value as usize),
                // SAFETY: this entry is not the last one.
                _ => at = unsafe { at.add(1) },
            }
        }
    }

    /// An entry of the dynamic section, as an address. On most machines the loader has made these absolute.
    pub(crate) fn address(&self, tag: i64) -> Option<usize> {
        self.number(tag).map(|value| if value < self.base { self.base + value } else { value })
    }

    /// Calls `visit` for each function of this name that the object offers: one for each version of it.
    pub(crate) fn each_function(&self, name: &CStr, mut visit: impl FnMut(*mut Symbol)) {
        let (Some(hashes), Some(symbols), Some(strings)) =
            (self.address(DT_GNU_HASH), self.address(DT_SYMTAB), self.address(DT_STRTAB))
        else {
            return;
        };
        let hash =
            name.to_bytes().iter().fold(5381u32, |h, byte| h.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: the object's table of hashes is laid out so: four numbers, the filter of 64-bit words, the buckets,
        // and one hash for each symbol from `first` on, whose lowest bit ends a bucket.
        unsafe {
            let table = hashes as *const u32;
            let (buckets, first, words) = (*table, *table.add(1), *table.add(2));
            let heads = table.add(4 + 2 * words as usize);
            let chain = heads.add(buckets as usize);
            let mut at = *heads.add((hash % buckets.max(1)) as usize);
            if buckets == 0 || at < first {
                return;
            }
            loop {
                let symbol = (symbols as *mut Symbol).add(at as usize);
                let text = CStr::from_ptr((strings + (*symbol).name as usize) as *const libc::c_char);
                if text == name && (*symbol).section != 0 && (*symbol).kind & 15 == STT_FUNC {
                    visit(symbol);
                }
                if *chain.add((at - first) as usize) & 1 == 1 {
                    return;
                }
                at += 1;
            }
        }
    }
}
