//! The constants by which `ask` decides, each with its reason. Nothing here is read from a model or measured on the
//! user's machine.

use crate::formulas::overhead;
use crate::formulas::weights::Format;
use crate::hardware::Gpu;
use crate::settings::Optimizer;
use crate::simulated::{CLOSED_FORM_ERROR, RESERVE, Verdict, context, room};
use gapless_trace::Bytes;

/// Tokens of a sequence if none are given: as usual recipes of fine-tuning have.
pub const USUAL_LENGTH: u64 = 2048;
/// The device if none is given: the one that the simulation was measured on.
pub const USUAL_GPU: &str = "h200";
/// Tokens of a T5 if none are given: it was trained on 512, and its relative positions have no end.
pub const T5_LENGTH: u64 = 512;
/// Pixels a side of a picture if none are given: ImageNet's, as torchvision's networks take them.
pub const USUAL_IMAGE: u64 = 224;
/// The smallest picture: convolutional networks halve it five times.
pub const SMALLEST_IMAGE: u64 = 32;
/// The largest number that a count, the tokens of a batch or the sequences of a step may have: no run is larger, and a
/// typing error is found before it is simulated. Products with it stay within 64 bits.
pub const LARGEST_COUNT: u64 = 1 << 40;
/// The most bytes on one GPU that are counted: a simulated card has no more, and no real one comes near.
pub const MOST_BYTES: u64 = 1 << 50;
/// Steps that are simulated: the first makes the optimizer's states, the second is the first whole one, the third
/// shows that it repeats.
pub const STEPS: u32 = 3;
/// Weights that share a scale in 4-bit integers: the group that AWQ and GPTQ checkpoints have.
pub const INT4_GROUP: u64 = 128;

/// The largest share of a card that is suggested to a serving engine, in hundredths: the driver and the context of the
/// process take some of the rest.
pub const LARGEST_SHARE: u32 = 98;

/// Bytes that PyTorch holds for each allocated byte, if closed forms say how many are allocated. It is no measurement:
/// the 71 single-GPU runs of `h200_cells.jsonl` hold 1.08 bytes in the median, so reserved peaks from closed forms are
/// on the low side, within their error bar. Simulated runs replay the allocator instead.
const RESERVED_PER_ALLOCATED: f64 = 1.02;
/// Factor by which closed forms are worse for pictures. The worst block's working set stands for all blocks, which is
/// far from the truth if blocks differ as much as those of convolutional networks.
pub const PICTURE_ERROR_FACTOR: f64 = 2.5;

/// The optimizer of plans if none was asked for: the same states and updates as AdamW's default, without its
/// temporaries.
pub const PLAN_OPTIMIZER: Optimizer = Optimizer::AdamWFused;
/// Optimizers to try if nothing fits that keeps the recipe, nearest to AdamW first: quantised states, factored states,
/// none.
pub const FALLBACK_OPTIMIZERS: [Optimizer; 3] = [Optimizer::AdamW8bit, Optimizer::Adafactor, Optimizer::Sgd];
/// Adapters to try if nothing fits that keeps the recipe: the rank of the usual recipes of LoRA and QLoRA.
pub const FALLBACK_RANK: u64 = 16;
/// Formats of the frozen weights below those adapters: LoRA's, then QLoRA's.
pub const FALLBACK_BASES: [Format; 2] = [Format::Half, Format::Nf4];
/// Formats to serve in if 16 bits do not fit: 8 bits, then 4.
pub const FALLBACK_FORMATS: [Format; 4] = [Format::Fp8, Format::Int8, Format::Int4(INT4_GROUP), Format::Nf4];
/// Bytes of a cached number that are tried with those formats: 16 bits, then fp8.
pub const FALLBACK_CACHE: [u64; 2] = [2, 1];

/// Passes to simulate of a step that accumulates: gradients are there from the second pass on, and more passes change
/// nothing.
#[must_use]
pub fn simulated_passes(accumulation: u64) -> u64 {
    accumulation.min(2)
}

/// Bytes that PyTorch's allocator typically holds for so many allocated bytes, if no run was simulated.
#[must_use]
pub fn typically_reserved(allocated: Bytes) -> Bytes {
    Bytes((allocated.0 as f64 * RESERVED_PER_ALLOCATED) as u64)
}

/// The verdict on a process whose `total` bytes were counted, not replayed on an allocator, and may be off by `error`.
#[must_use]
pub fn counted(total: Bytes, memory: Bytes, error: f64) -> Verdict {
    if total <= room(memory, error) { Verdict::Fits } else { Verdict::DoesNotFit }
}

/// The memory of a card that leaves [`room`] for `total` bytes, in whole MiB as cards are asked for.
#[must_use]
pub fn card_for(total: Bytes, error: f64) -> u64 {
    let whole = (total.0 as f64 * (1.0 + error) / (1.0 - RESERVE)) as u64;
    let mut mib = whole >> 20;
    while room(Bytes(mib << 20), error) < total {
        mib += 1;
    }
    mib << 20
}

/// How far closed forms may be off, as a share.
#[must_use]
pub fn closed_form_error(pictures: bool) -> f64 {
    if pictures { PICTURE_ERROR_FACTOR * CLOSED_FORM_ERROR } else { CLOSED_FORM_ERROR }
}

/// The share of a GPU that the search over closed forms leaves free, so that its plans are within [`room`] after the
/// allocator's share was added. The search counts `context(true)` for the driver, which is less than some GPUs take.
#[must_use]
pub fn headroom(gpu: &Gpu, error: f64) -> f64 {
    let memory = gpu.memory() as f64;
    let more = context(gpu).0 as f64 - overhead::context(true).value as f64;
    let usable = (room(Bytes(gpu.memory()), error).0 as f64 - more.max(0.0)) / RESERVED_PER_ALLOCATED;
    (1.0 - usable.max(0.0) / memory.max(1.0)).clamp(0.0, 0.999_999)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn closed_forms_add_a_fiftieth_to_what_is_allocated() {
        assert_eq!(typically_reserved(Bytes(100 * GIB)), Bytes(102 * GIB));
        assert_eq!(typically_reserved(Bytes(0)), Bytes(0));
        assert!(typically_reserved(Bytes(GIB + 1)) > Bytes(GIB + 1));
    }

    #[test]
    fn what_was_counted_leaves_a_fiftieth_of_the_device_free_after_its_error_bar() {
        let fits = |total, memory, error| counted(Bytes(total), Bytes(memory), error).fits();
        assert!(fits(98 * GIB, 100 * GIB, 0.0) && !fits(98 * GIB + 1, 100 * GIB, 0.0));
        assert!(fits(89 * GIB, 100 * GIB, 0.1) && !fits(90 * GIB, 100 * GIB, 0.1));
        assert!(!fits(1, 0, 0.0));
    }

    #[test]
    fn a_card_for_a_run_holds_it_and_a_mebibyte_less_does_not() {
        for total in [1, 1 << 20, 123_456_789, 80 * GIB, 5000 * GIB] {
            for error in [0.0, 0.02, 0.1, 0.25] {
                let card = card_for(Bytes(total), error);
                assert!(counted(Bytes(total), Bytes(card), error).fits(), "{total} {error}");
                assert!(!counted(Bytes(total), Bytes(card - (1 << 20)), error).fits(), "{total} {error}");
            }
        }
    }

    #[test]
    fn what_the_search_leaves_free_is_enough_for_the_verdict() {
        for gpu in crate::hardware::GPUS {
            for error in [0.1, 0.25] {
                let usable = gpu.memory() as f64 * (1.0 - headroom(gpu, error));
                let allocated = Bytes(usable as u64).saturating_sub(Bytes(overhead::context(true).value));
                let total = typically_reserved(allocated) + context(gpu);
                assert!(counted(total, Bytes(gpu.memory()), error).fits(), "{}", gpu.name);
            }
        }
    }

    #[test]
    fn a_step_that_accumulates_is_simulated_with_two_passes_at_most() {
        assert_eq!([1, 2, 3, 64].map(simulated_passes), [1, 2, 2, 2]);
    }

    #[test]
    fn fallbacks_need_less_and_less() {
        let state = |o: &Optimizer| o.state_bytes(2);
        assert!(FALLBACK_OPTIMIZERS.is_sorted_by(|a, b| state(a) >= state(b)));
        assert!(FALLBACK_OPTIMIZERS.iter().all(|o| state(o) < state(&PLAN_OPTIMIZER)));
        assert!(FALLBACK_BASES.is_sorted_by(|a, b| a.bits() > b.bits()));
        let bits = FALLBACK_FORMATS.map(Format::bits);
        assert!(bits[..2].iter().all(|b| *b == 8.0) && bits[2..].iter().all(|b| *b < 5.0), "{bits:?}");
        assert!(FALLBACK_CACHE.is_sorted_by(|a, b| a > b));
    }

    #[test]
    fn plans_take_an_optimizer_with_the_states_of_adamw_and_no_temporaries() {
        assert_eq!(PLAN_OPTIMIZER.state_bytes(4), Optimizer::AdamW.state_bytes(4));
        assert_eq!(PLAN_OPTIMIZER.transient(4), (0.0, 0.0));
    }

    #[test]
    fn error_bars_grow_from_simulated_to_counted_to_closed_forms() {
        let bars =
            [0.03, crate::account::STORED_ERROR, CLOSED_FORM_ERROR, CLOSED_FORM_ERROR * PICTURE_ERROR_FACTOR];
        assert!(bars.is_sorted_by(|a, b| a < b), "{bars:?}");
    }

    #[test]
    fn the_usual_device_is_a_known_one() {
        assert!(crate::hardware::find(USUAL_GPU).is_ok());
        assert!([SMALLEST_IMAGE, USUAL_IMAGE].is_sorted());
    }
}
