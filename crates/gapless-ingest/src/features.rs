//! The version of torch that wrote a snapshot, as far as its fields show.
//!
//! Every version only added fields. A field that is there gives a lower bound; one that would have to be there and is
//! not gives an upper bound.

use crate::rows::field;

/// A field that tells versions apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Feature {
    RequestedSize,
    BlockAddress,
    SegmentPool,
    IsExpandable,
    DeviceTraces,
    Settings,
    Annotations,
    GraphCaptureReuse,
    MaxRoundThreshold,
    HostMemory,
    /// `annotate` among the events.
    BlockNotes,
    /// `expandable_segments_reserve` in the settings.
    ExpandableReserve,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Features {
    bits: u32,
    /// Fields that any event had.
    any: u16,
    events: bool,
}

/// Versions 2.x by x; 1.13 is -1.
const NEWEST: i32 = 15;

impl Features {
    #[inline]
    pub(crate) fn add(&mut self, feature: Feature) {
        self.bits |= 1 << feature as u8;
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.bits >> feature as u8 & 1 == 1
    }

    #[inline]
    pub(crate) fn event(&mut self, fields: u16) {
        self.any |= fields;
        self.events = true;
    }

    /// "torch 2.10 or 2.11"; `segments` is true if there are any, so that their fields would be there.
    pub(crate) fn producer(&self, segments: bool) -> String {
        let (mut from, mut to) = (-1, i32::MAX);
        let mut tell = |applies: bool, there: bool, since: i32| {
            if there {
                from = from.max(since);
            } else if applies {
                to = to.min(since - 1);
            }
        };
        let traces = self.has(Feature::DeviceTraces);
        let has = |bit| self.any & bit != 0;
        tell(segments, self.has(Feature::RequestedSize), 0);
        tell(segments, self.has(Feature::BlockAddress), 1);
        tell(segments, self.has(Feature::SegmentPool), 1);
        tell(segments, self.has(Feature::IsExpandable), 1);
        // memory_snapshot() still returns a bare list of segments.
        tell(false, traces, 0);
        tell(self.events, has(field::TIME), 2);
        tell(traces, self.has(Feature::Settings), 3);
        tell(traces, self.has(Feature::Annotations), 5);
        tell(self.events, has(field::COMPILE_CONTEXT), 8);
        tell(self.has(Feature::Settings), self.has(Feature::GraphCaptureReuse), 9);
        tell(self.events, has(field::USER_METADATA), 10);
        tell(false, has(field::FORWARD), 11);
        tell(self.events, has(field::POOL), 12);
        tell(self.has(Feature::Settings), self.has(Feature::MaxRoundThreshold), 13);
        tell(false, has(field::MARK), 13);
        tell(traces, self.has(Feature::HostMemory), 14);
        tell(false, self.has(Feature::BlockNotes), 14);
        tell(false, self.has(Feature::ExpandableReserve), 15);
        tell(has(field::MARK), has(field::INTERNAL), 15);
        if has(field::CPP) {
            // Only 2.0 kept C++ frames apart.
            (from, to) = (0, 0);
        }
        let name = |v: i32| if v < 0 { "1.13".to_owned() } else { format!("2.{v}") };
        match (from, to) {
            // Fields of versions that exclude each other: the file was edited, or another program wrote it.
            _ if from > to => "torch, of no single version".into(),
            (-1, i32::MAX) => "torch".into(),
            (-1, -1) => "torch 1.13 or earlier".into(),
            (-1, to) => format!("torch {} or earlier", name(to)),
            (from, to) if to > NEWEST => format!("torch {} or later", name(from)),
            (from, to) if from == to => format!("torch {}", name(from)),
            (from, to) if from + 1 == to => format!("torch {} or {}", name(from), name(to)),
            (from, to) => format!("torch {} to {}", name(from), name(to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(features: &[Feature], fields: u16) -> Features {
        let mut f = Features::default();
        for feature in features {
            f.add(*feature);
        }
        if fields != 0 {
            f.event(fields);
        }
        f
    }

    #[test]
    fn the_fields_of_a_snapshot_bound_the_version_that_wrote_it() {
        use Feature::*;
        let base = field::ACTION | field::ADDR | field::SIZE | field::STREAM;
        let modern = [
            RequestedSize,
            BlockAddress,
            SegmentPool,
            IsExpandable,
            DeviceTraces,
            Settings,
            Annotations,
            GraphCaptureReuse,
            MaxRoundThreshold,
            HostMemory,
        ];
        let with_reserve = [&modern[..], &[ExpandableReserve]].concat();
        let till_2_10 = base | field::TIME | field::COMPILE_CONTEXT | field::USER_METADATA;
        let cases = [
            (with(&[], 0), "torch 1.13 or earlier"),
            (with(&[RequestedSize, DeviceTraces], base), "torch 2.0"),
            (with(&modern[..5], base), "torch 2.1"),
            (with(&modern[..5], base | field::TIME), "torch 2.2"),
            (with(&modern[..6], base | field::TIME), "torch 2.3 or 2.4"),
            (with(&modern[..7], base | field::TIME), "torch 2.5 to 2.7"),
            (with(&modern[..7], base | field::TIME | field::COMPILE_CONTEXT), "torch 2.8"),
            (with(&modern[..8], base | field::TIME | field::COMPILE_CONTEXT), "torch 2.9"),
            (with(&modern[..8], till_2_10), "torch 2.10 or 2.11"),
            (with(&modern[..8], till_2_10 | field::FORWARD), "torch 2.11"),
            (with(&modern[..8], till_2_10 | field::POOL), "torch 2.12"),
            (with(&modern[..9], till_2_10 | field::POOL), "torch 2.13"),
            (with(&modern[..9], till_2_10 | field::POOL | field::MARK), "torch 2.13"),
            (with(&modern, till_2_10 | field::POOL), "torch 2.14 or later"),
            (with(&modern, till_2_10 | field::POOL | field::MARK), "torch 2.14"),
            (with(&modern, till_2_10 | field::POOL | field::INTERNAL), "torch 2.15 or later"),
            (with(&with_reserve, till_2_10 | field::POOL), "torch 2.15 or later"),
            (with(&modern[..4], 0), "torch 2.1 or later"),
            (with(&modern[..9], 0), "torch 2.13"),
            (with(&modern, 0), "torch 2.14 or later"),
        ];
        for (features, producer) in cases {
            assert_eq!(features.producer(true), producer, "{features:?}");
        }
    }
}
