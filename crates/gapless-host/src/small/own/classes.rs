//! Sizes of small objects: multiples of 16 up to 256, then eight steps for each doubling up to 256 KiB. An object
//! wastes at most 15 bytes, or an eighth.

/// Objects are cut from whole slices of 16 KiB.
pub const SLICE: usize = 16 << 10;
/// The largest object that has a class. A larger one gets slices of its own.
pub const MOST: usize = 256 << 10;
/// From here on an object is of middle size: it moves alone between a thread and the shelf.
pub const MIDDLE: usize = 32 << 10;
/// Numbers of classes, with 0 for "no object begins here" and the last for an object with slices of its own.
pub const COUNT: usize = 2 + 16 + 10 * 8;
pub const NONE: u8 = 0;
pub const WHOLE: u8 = COUNT as u8 - 1;

/// At most this many bytes of objects move between a thread and the shared shelf at once.
const BATCH_BYTES: usize = 16 << 10;
const BATCH: usize = 64;

/// A size class, as the parts of the core need it.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    pub size: u32,
    /// Slices of a span, and the objects that fit into it.
    pub slices: u32,
    pub capacity: u32,
    /// The number of objects that move at once.
    pub batch: u32,
}

pub static CLASSES: [Class; COUNT] = classes();
/// The class of a size up to 1 KiB, by 16 bytes, and up to 32 KiB, by 128 bytes.
static FINE: [u8; 65] = by_step(16);
static COARSE: [u8; 257] = by_step(128);

/// The largest size of the fine table.
pub const FINE_MOST: usize = 1024;

/// The class of a size that is at most [`MOST`].
#[inline(always)]
#[must_use]
pub fn of(size: usize) -> u8 {
    if size <= FINE_MOST {
        fine(size)
    } else if size <= MIDDLE {
        coarse(size)
    } else {
        middle(size)
    }
}

/// The class of a size above [`MIDDLE`] that is at most [`MOST`].
#[inline(always)]
#[must_use]
pub fn middle(size: usize) -> u8 {
    let power = (size - 1).ilog2() as usize;
    (17 + (power - 8) * 8 + ((size - 1) >> (power - 3) & 7)) as u8
}

/// The class of a size that is at most [`FINE_MOST`].
#[inline(always)]
#[must_use]
pub fn fine(size: usize) -> u8 {
    FINE[size.div_ceil(16)]
}

/// The class of a size above it that is at most [`MIDDLE`].
#[inline(always)]
#[must_use]
pub fn coarse(size: usize) -> u8 {
    COARSE[size.div_ceil(128)]
}

const fn size_of_class(class: usize) -> usize {
    if class <= 16 {
        return class * 16;
    }
    let (doubling, step) = ((class - 17) / 8, (class - 17) % 8 + 1);
    (256 << doubling) + step * (32 << doubling)
}

const fn classes() -> [Class; COUNT] {
    let mut all = [Class { size: 0, slices: 0, capacity: 0, batch: 0 }; COUNT];
    let mut at = 1;
    while at < WHOLE as usize {
        let size = size_of_class(at);
        let mut slices = 1;
        // At most a sixteenth of a span is left over, and a span has at least four objects.
        while slices * SLICE < 4 * size || slices * SLICE % size * 16 > slices * SLICE {
            slices += 1;
        }
        let fit = BATCH_BYTES / size;
        let batch = if size > MIDDLE {
            1
        } else if fit < 2 {
            2
        } else if fit > BATCH {
            BATCH
        } else {
            fit
        };
        let capacity = slices * SLICE / size;
        all[at] = Class {
            size: size as u32,
            slices: slices as u32,
            capacity: capacity as u32,
            batch: batch as u32,
        };
        at += 1;
    }
    all
}

/// The smallest class for each multiple of `step`. Size 0 is served as size 1.
const fn by_step<const N: usize>(step: usize) -> [u8; N] {
    let mut all = [1; N];
    let mut class = 1;
    let mut at = 1;
    while at < N {
        while size_of_class(class) < at * step {
            class += 1;
        }
        all[at] = class as u8;
        at += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        for size in 0..=MOST {
            let class = of(size) as usize;
            assert!(class > 0 && class < WHOLE as usize);
            assert!(CLASSES[class].size as usize >= size);
            assert!(class == 1 || (CLASSES[class - 1].size as usize) < size, "{size}");
        }
    }

    #[test]
    fn classes_waste_little_and_are_aligned() {
        for pair in CLASSES[1..WHOLE as usize].windows(2) {
            let (small, large) = (pair[0], pair[1]);
            assert!(large.size > small.size && large.size % 16 == 0);
            assert!(small.size < 256 || (large.size - small.size) * 8 <= small.size, "{large:?}");
        }
        for class in &CLASSES[1..WHOLE as usize] {
            let span = class.slices * SLICE as u32;
            assert!(class.capacity >= 4 && class.capacity <= 1024 && class.slices <= 80, "{class:?}");
            assert!(span - class.capacity * class.size <= span / 16, "{class:?}");
        }
        assert_eq!(CLASSES[WHOLE as usize - 1].size as usize, MOST);
    }
}
