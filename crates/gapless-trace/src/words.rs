//! The vocabulary: units and identities as types, so that a byte count is never taken for an address.
//!
//! | word | meaning |
//! |---|---|
//! | live | bytes asked for and not yet freed by the caller |
//! | allocated | live, plus the bytes of rounding and of unsplit blocks: block sizes |
//! | requested | bytes asked for, until the block can be used again |
//! | active | block sizes, until the block can be used again (pending frees count) |
//! | reserved | device memory that the process holds |
//! | fragmentation | 1 - peak allocated / peak reserved |
//! | stranded | free bytes in segments that also hold active blocks |
//! | block | a range of addresses handed to a caller, or free |
//! | segment | memory taken from the device in one call, cut into blocks |
//! | event | one entry of a trace, counted from 0 |
//! | tick | an instant between events: tick k is the state after the first k events |
//! | lifetime | the half-open interval of ticks `[start, end)` in which a block is active |
//!
//! All intervals are half-open. KiB, MiB, GiB are binary.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Bytes(pub u64);

/// An address on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DeviceAddr(pub u64);

/// A stream's handle as the run saw it; 0 is the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct StreamId(pub u64);

/// A pool's identity: (0, 0) the default, (n, 0) made for a CUDA graph, (0, n) made by the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64, pub u64);

/// Position of an event in its device's trace, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct EventIndex(pub u32);

/// An instant: the state after the first `k` events. A trace of n events has ticks 0 ..= n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Tick(pub u32);

/// Microseconds since the Unix epoch, or since the start of the run if the source has no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Micros(pub u64);

impl Bytes {
    pub const ZERO: Bytes = Bytes(0);
    pub const KIB: Bytes = Bytes(1 << 10);
    pub const MIB: Bytes = Bytes(1 << 20);
    pub const GIB: Bytes = Bytes(1 << 30);
    /// The largest size a reader accepts (2^60): the device allocators we know refuse it too, and sums of
    /// fewer than 16 of them cannot wrap.
    pub const LIMIT: Bytes = Bytes(gapless_size::LIMIT);

    /// The share `self / whole`, 0 if the whole is 0.
    #[must_use]
    pub fn share_of(self, whole: Bytes) -> f64 {
        if whole.0 == 0 { 0.0 } else { self.0 as f64 / whole.0 as f64 }
    }

    #[must_use]
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        self.0 -= other.0;
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(values: I) -> Bytes {
        values.fold(Bytes::ZERO, Add::add)
    }
}

/// As people read it: `512 B`, `1.50 KiB`, `13.6 GiB`; three significant digits from KiB on.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // 999.5 would print as "1000": step to the next unit before that, so the width stays bounded.
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = if value < 9.995 {
            2
        } else if value < 99.95 {
            1
        } else {
            0
        };
        f.pad(&format!("{value:.digits$} {}", UNITS[unit]))
    }
}

/// The reason why a text is not a valid size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseBytesError {
    text: String,
    wrong: gapless_size::Wrong,
}

impl fmt::Display for ParseBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use gapless_size::Wrong;
        let help = match self.wrong {
            Wrong::TooLarge | Wrong::Negative => self.wrong.words(),
            Wrong::NoNumber | Wrong::Unit => "use a number and a unit, such as 512MiB, 20GiB or 1.5GB",
        };
        write!(f, "invalid size {:?}: {help}", self.text)
    }
}

impl std::error::Error for ParseBytesError {}

/// As [`gapless_size::parse`] reads it: `20GiB`, `20 GiB`, `20G` (both binary), `20GB` (decimal), `21474836480`.
impl std::str::FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        match gapless_size::parse(text.as_bytes()) {
            Ok(size) => Ok(Bytes(size.bytes)),
            Err(wrong) => Err(ParseBytesError { text: text.to_owned(), wrong }),
        }
    }
}

impl DeviceAddr {
    #[must_use]
    pub fn offset(self, by: Bytes) -> DeviceAddr {
        DeviceAddr(self.0 + by.0)
    }
}

impl fmt::Display for DeviceAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.pad("default") } else { f.pad(&format!("{:#x}", self.0)) }
    }
}

impl PoolId {
    pub const DEFAULT: PoolId = PoolId(0, 0);

    #[must_use]
    pub fn is_private(self) -> bool {
        self != PoolId::DEFAULT
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PoolId(0, 0) => f.pad("default"),
            PoolId(graph, 0) => f.pad(&format!("graph {graph}")),
            PoolId(0, user) => f.pad(&format!("user {user}")),
            PoolId(a, b) => f.pad(&format!("({a}, {b})")),
        }
    }
}

impl EventIndex {
    /// The instant right after this event.
    #[must_use]
    pub fn after(self) -> Tick {
        Tick(self.0 + 1)
    }
}

impl fmt::Display for EventIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Tick {
    /// The event that led to this instant; none at tick 0, before the first event.
    #[must_use]
    pub fn event(self) -> Option<EventIndex> {
        self.0.checked_sub(1).map(EventIndex)
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Micros {
    #[must_use]
    pub fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

/// A duration as people read it: `950 µs`, `62.1 ms`, `9.79 s`, `3 min 04 s`, `2 h 05 min`.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0 as f64;
        let three = |value: f64, unit: &str| {
            let digits = if value < 9.995 {
                2
            } else if value < 99.95 {
                1
            } else {
                0
            };
            format!("{value:.digits$} {unit}")
        };
        let text = if us < 999.5 {
            format!("{} µs", self.0)
        } else if us < 999_500.0 {
            three(us / 1e3, "ms")
        } else if us < 99_950_000.0 {
            three(us / 1e6, "s")
        } else {
            let seconds = (us / 1e6).round() as u64;
            if seconds < 3600 {
                format!("{} min {:02} s", seconds / 60, seconds % 60)
            } else {
                format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60)
            }
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_with_three_digits_in_the_unit_people_expect() {
        let cases: [(u64, &str); 9] = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1_048_575, "1.00 MiB"),
            (20_971_520, "20.0 MiB"),
            (1_048_064_000, "0.98 GiB"),
            (15_252_586_496, "14.2 GiB"),
            (143_771_000_000, "134 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text, "{bytes}");
        }
    }

    #[test]
    fn an_invalid_size_is_told_with_its_reason() {
        assert_eq!("1.5GB".parse(), Ok(Bytes(1_500_000_000)));
        let told = |text: &str| text.parse::<Bytes>().expect_err(text).to_string();
        assert!(told("20 apples").contains("use a number and a unit"));
        assert!(told("").contains("use a number and a unit"));
        assert!(told("99999999TiB").contains("too large"));
        assert!(told("-1").contains("below 0"));
    }

    #[test]
    fn durations_print_in_the_unit_people_expect() {
        let cases = [
            (0, "0 µs"),
            (999, "999 µs"),
            (62_115, "62.1 ms"),
            (999_900, "1.00 s"),
            (9_794_928, "9.79 s"),
            (184_000_000, "3 min 04 s"),
            (7_500_000_000, "2 h 05 min"),
        ];
        for (us, text) in cases {
            assert_eq!(Micros(us).to_string(), text);
        }
    }
}
