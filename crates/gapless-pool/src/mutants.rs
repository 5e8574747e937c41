//! Fixes that can be taken out, one at a time, to show that the checker finds what they prevent. Without the feature `mutants` none can be.

/// What is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    LendUnsettled,
    ReturnUnsettled,
    MoveUnderWork,
    RetireUnderWork,
    FailedRecordIsDone,
    TrimPoolInUse,
    FenceInCapture,
    RecordInCapture,
    TrimInCapture,
    DeadLane,
    AddressesLeak,
    AddressesCreep,
}

#[inline]
pub(crate) fn is(_: Mutant) -> bool {
    false
}
