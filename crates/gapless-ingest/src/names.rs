//! The words of a snapshot. They are interned first, in this order, so that a word's number is its string's id and
//! comparing a key is comparing an integer.

use gapless_trace::{Action, StringId, Strings};

macro_rules! names {
    ($($name:ident $text:literal)*) => {
        /// A word that means something in a snapshot. `Other` is every other string.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[expect(clippy::enum_variant_names, reason = "the variants are called as the words are")]
        pub(crate) enum Name { Nothing, $($name,)* Other }

        const ALL: &[(Name, &str)] = &[(Name::Nothing, ""), $((Name::$name, $text),)*];
    };
}

names! {
    Action "action"
    Addr "addr"
    Size "size"
    Stream "stream"
    TimeUs "time_us"
    CompileContext "compile_context"
    UserMetadata "user_metadata"
    PoolId "pool_id"
    Frames "frames"
    CppFrames "cpp_frames"
    ForwardFrames "forward_frames"
    DeviceFree "device_free"
    NotApplicable "N/A"
    Alloc "alloc"
    FreeRequested "free_requested"
    FreeCompleted "free_completed"
    SegmentAlloc "segment_alloc"
    SegmentFree "segment_free"
    SegmentMap "segment_map"
    SegmentUnmap "segment_unmap"
    Oom "oom"
    Snapshot "snapshot"
    Annotate "annotate"
    InternalMetadata "internal_metadata"
    ExactAddress "mallocWithAddress"
    Name "name"
    Filename "filename"
    Line "line"
    Device "device"
    Address "address"
    TotalSize "total_size"
    AllocatedSize "allocated_size"
    ActiveSize "active_size"
    RequestedSize "requested_size"
    SegmentType "segment_type"
    SegmentPoolId "segment_pool_id"
    IsExpandable "is_expandable"
    Blocks "blocks"
    State "state"
    History "history"
    RealSize "real_size"
    Large "large"
    Small "small"
    ActiveAllocated "active_allocated"
    ActivePendingFree "active_pending_free"
    ActiveAwaitingFree "active_awaiting_free"
    Inactive "inactive"
    Stage "stage"
    Start "START"
    End "END"
    OfBlock "BLOCK"
    Segments "segments"
    DeviceTraces "device_traces"
    AllocatorSettings "allocator_settings"
    ExternalAnnotations "external_annotations"
    Conf "PYTORCH_CUDA_ALLOC_CONF"
    NewConf "PYTORCH_ALLOC_CONF"
    MaxSplitSize "max_split_size"
    GcThreshold "garbage_collection_threshold"
    ExpandableSegments "expandable_segments"
    RoundupPower2Divisions "roundup_power2_divisions"
    GraphCaptureReuse "graph_capture_record_stream_reuse"
    MaxRoundThreshold "max_round_threshold"
    MaxCachedSize "max_cached_size"
    HostSegments "host_segments"
    HostTraces "host_traces"
}

impl Name {
    /// A table in which every name has its number.
    pub(crate) fn strings() -> Strings {
        let mut strings = Strings::new();
        for (i, (_, text)) in ALL.iter().enumerate() {
            let id = strings.intern(text);
            debug_assert_eq!(id.0 as usize, i);
        }
        strings
    }

    #[inline]
    pub(crate) fn of(id: StringId) -> Name {
        ALL.get(id.0 as usize).map_or(Name::Other, |&(name, _)| name)
    }

    #[inline]
    pub(crate) fn id(self) -> StringId {
        StringId(self as u32)
    }

    pub(crate) fn text(self) -> &'static str {
        ALL.get(self as usize).map_or("?", |&(_, text)| text)
    }

    /// The action with this name: the names of actions stand in the order of their numbers.
    #[inline]
    pub(crate) fn action(id: StringId) -> Option<Action> {
        let number = id.0.wrapping_sub(Name::Alloc as u32);
        if number <= u32::from(u8::MAX) { Action::from_u8(number as u8) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_name_is_the_id_of_its_text() {
        let mut strings = Name::strings();
        for (name, text) in ALL {
            assert_eq!(strings.intern(text), name.id());
            assert_eq!(Name::of(name.id()), *name);
            assert_eq!(name.text(), *text);
        }
        assert_eq!(Name::of(StringId(ALL.len() as u32)), Name::Other);
        for action in Action::ALL {
            assert_eq!(Name::action(strings.intern(action.name())), Some(action));
        }
    }
}
