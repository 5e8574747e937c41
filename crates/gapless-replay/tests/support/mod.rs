//! Random programs for allocators: steps that mean something in any state, so that a failing one can be made smaller by
//! leaving steps out.

use gapless_replay::{Device, Lane, Placement, SimDevice};
use gapless_trace::{PoolId, StreamId};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// One action of the program. `pick` names a block among those in question, counted round.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Alloc { size: u64, lane: u16 },
    Free { pick: u16 },
    FreeRequested { pick: u16 },
    FreeCompleted { pick: u16 },
    EmptyCache { pool: Option<PoolId> },
}

/// A program and the card it runs on.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) capacity: u64,
    pub(crate) highest: bool,
    /// Bytes of the card that another process holds: the device refuses before the card is full.
    pub(crate) foreign: u64,
    pub(crate) steps: Vec<Step>,
}

impl Scenario {
    pub(crate) fn device(&self) -> SimDevice {
        let placement = if self.highest { Placement::Highest } else { Placement::Lowest };
        let mut device = SimDevice::placing(self.capacity, placement);
        if self.foreign > 0 {
            device.malloc(self.foreign).expect("less than the card");
        }
        device
    }
}

pub(crate) const PRIVATE: [PoolId; 2] = [PoolId(1, 0), PoolId(0, 2)];

/// Three streams, two of them with a private pool as well.
pub(crate) fn lanes() -> Vec<Lane> {
    let lane = |stream, pool| Lane { stream: StreamId(stream), pool };
    vec![
        lane(0, PoolId::DEFAULT),
        lane(7, PoolId::DEFAULT),
        lane(0, PRIVATE[0]),
        lane(9, PoolId::DEFAULT),
        lane(9, PRIVATE[1]),
    ]
}

/// Log-uniform, with the sizes at which rules change and their neighbours, and a few that recur: reuse needs equal
/// sizes.
fn size() -> impl Strategy<Value = u64> {
    const EDGES: [u64; 14] = [
        256,
        512,
        1024,
        512 * KIB,
        MIB,
        2 * MIB,
        10 * MIB,
        20 * MIB,
        32 * MIB,
        64 * MIB,
        128 * MIB,
        200 * MIB,
        256 * MIB,
        1024 * MIB,
    ];
    prop_oneof![
        4 => (0u32..28, 0u64..1 << 27).prop_map(|(log, bits)| (1 << log) + bits % (1 << log)),
        3 => (0..EDGES.len(), -1i64..=1).prop_map(|(edge, by)| EDGES[edge].saturating_add_signed(by)),
        4 => prop::sample::select(vec![384 * KIB, 768 * KIB, 3 * MIB, 7 * MIB, 12 * MIB, 700 * KIB + 100, 4096]),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let pool = prop_oneof![
        2 => Just(None),
        1 => Just(Some(PoolId::DEFAULT)),
        1 => prop::sample::select(PRIVATE.to_vec()).prop_map(Some),
    ];
    prop_oneof![
        20 => (size(), 0u16..5).prop_map(|(size, lane)| Step::Alloc { size, lane }),
        13 => any::<u16>().prop_map(|pick| Step::Free { pick }),
        4 => any::<u16>().prop_map(|pick| Step::FreeRequested { pick }),
        4 => any::<u16>().prop_map(|pick| Step::FreeCompleted { pick }),
        1 => pool.prop_map(|pool| Step::EmptyCache { pool }),
    ]
}

/// Cards from too small for anything to too large to fill.
pub(crate) fn scenario(steps: usize) -> impl Strategy<Value = Scenario> {
    let capacity = prop_oneof![
        Just(64 * MIB),
        Just(100 * MIB + 4096),
        Just(300 * MIB),
        Just(1024 * MIB + 1),
        Just(80 << 30)
    ];
    // At most a third of the larger cards, so that the memory that models take at their start fits.
    let foreign = prop_oneof![2 => Just(0), 1 => 1u64..333];
    (capacity, any::<bool>(), foreign, prop::collection::vec(step(), 1..steps)).prop_map(
        |(capacity, highest, thousandths, steps)| {
            let foreign = if capacity < 200 * MIB { 0 } else { capacity / 1000 * thousandths };
            Scenario { capacity, highest, foreign, steps }
        },
    )
}
