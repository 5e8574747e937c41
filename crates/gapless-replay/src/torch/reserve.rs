//! The number of addresses of an expandable range: `expandable_segments_reserve` and its list by class (2.15 and
//! later).
//!
//! A value is a share of the card (`0.5`) or a number of GiB (`40G`). PyTorch warns about any other value and goes on
//! without it, and so does this reader. A stream gets a class only through a C++ function, so a recording names none:
//! the list is kept, and applies if a caller gives streams their classes.

/// Addresses of a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reserve {
    /// Of the card's memory.
    Share(f64),
    Gib(f64),
}

impl Reserve {
    /// Reads a value; `None` if PyTorch ignores it.
    #[must_use]
    pub fn read(text: &str) -> Option<Reserve> {
        let (number, gib) = match text.strip_suffix(['G', 'g']) {
            Some(number) => (number, true),
            None => (text, false),
        };
        let value = number.parse::<f64>().ok().filter(|v| v.is_finite() && *v > 0.0)?;
        Some(if gib { Reserve::Gib(value) } else { Reserve::Share(value) })
    }

    /// Bytes for a card of `total`; a value beyond all numbers is the largest one.
    #[must_use]
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Reserve::Share(share) => (share * total as f64) as u64,
            Reserve::Gib(gib) => (gib * (1u64 << 30) as f64) as u64,
        }
    }

    /// As PyTorch reads it.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Reserve::Share(share) => format!("{share}"),
            Reserve::Gib(gib) => format!("{gib}G"),
        }
    }
}

/// The settings of both kinds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reserves {
    pub all: Option<Reserve>,
    /// In the order of the list; no name twice.
    pub by_class: Vec<(String, Reserve)>,
}

impl Reserves {
    /// The length of a new range on a card of `total` bytes, for a stream of `class`, in whole granules: the class's
    /// own value, else that for all, else nine eighths of the card; never more than that.
    #[must_use]
    pub fn length(&self, total: u64, class: &str, granule: u64) -> u64 {
        let full = total + total / 8;
        let own = self.by_class.iter().find(|(name, _)| name == class).map(|(_, reserve)| *reserve);
        let bytes = own.or(self.all).map_or(full, |reserve| reserve.bytes(total).min(full));
        bytes.div_ceil(granule) * granule
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn shares_and_sizes_are_read_and_nonsense_is_not() {
        assert_eq!(Reserve::read("0.5"), Some(Reserve::Share(0.5)));
        assert_eq!(Reserve::read("40G"), Some(Reserve::Gib(40.0)));
        assert_eq!(Reserve::read("1.5g"), Some(Reserve::Gib(1.5)));
        for text in ["", "G", "0", "-1", "nan", "inf", "infG", "half", "0.5x", "1e999"] {
            assert_eq!(Reserve::read(text), None, "{text}");
        }
    }

    #[test]
    fn a_range_has_whole_granules_and_at_most_nine_eighths_of_the_card() {
        let card = 200 * MIB;
        let of = |text: &str| Reserves { all: Reserve::read(text), ..Reserves::default() };
        assert_eq!(Reserves::default().length(card, "", 20 * MIB), 240 * MIB, "225 in granules of 20");
        assert_eq!(of("0.25").length(card, "", 20 * MIB), 60 * MIB, "50 in granules of 20");
        assert_eq!(of("0.25").length(card, "", 2 * MIB), 50 * MIB);
        assert_eq!(of("1G").length(card, "", 20 * MIB), 240 * MIB);
        assert_eq!(of("1e300G").length(card, "", 20 * MIB), 240 * MIB);
    }

    #[test]
    fn a_class_has_a_value_of_its_own_or_that_for_all() {
        let by_class = vec![("decode".to_owned(), Reserve::Share(0.125))];
        let reserves = Reserves { all: Some(Reserve::Share(0.5)), by_class };
        assert_eq!(reserves.length(800 * MIB, "decode", 2 * MIB), 100 * MIB);
        assert_eq!(reserves.length(800 * MIB, "other", 2 * MIB), 400 * MIB);
        assert_eq!(reserves.length(800 * MIB, "", 2 * MIB), 400 * MIB);
    }
}
