//! MobileNet and EfficientNet from the tables in torchvision's sources.

use crate::model::{Inverted, InvertedBlock, InvertedFamily};

/// torchvision's rounding of channels, of a number in tenths: a multiple of 8, never less than nine tenths of it.
fn divisible(tenths: u64) -> u64 {
    let near = ((tenths + 40) / 10 / 8 * 8).max(8);
    if near * 100 < 9 * tenths { near + 8 } else { near }
}

/// Expansion, channels, blocks, stride of the first: one row a stage.
const V2: [[u64; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];

pub(super) fn mobilenet_v2(classes: u64) -> Inverted {
    let mut inputs = 32;
    let mut blocks = Vec::new();
    for [expansion, outputs, count, first] in V2 {
        for place in 0..count {
            blocks.push(InvertedBlock {
                stage: blocks.len() as u64,
                place: 0,
                inputs,
                expanded: inputs * expansion,
                outputs,
                kernel: 3,
                stride: if place == 0 { first } else { 1 },
                squeeze: 0,
                hard: false,
            });
            inputs = outputs;
        }
    }
    Inverted { family: InvertedFamily::MobileNetV2, stem: 32, blocks, last: 1280, inner: 0, classes }
}

/// Kernel, expanded channels, channels, 1 if they are weighed, 1 for Hardswish, stride: one row a block.
const V3_LARGE: [[u64; 6]; 15] = [
    [3, 16, 16, 0, 0, 1],
    [3, 64, 24, 0, 0, 2],
    [3, 72, 24, 0, 0, 1],
    [5, 72, 40, 1, 0, 2],
    [5, 120, 40, 1, 0, 1],
    [5, 120, 40, 1, 0, 1],
    [3, 240, 80, 0, 1, 2],
    [3, 200, 80, 0, 1, 1],
    [3, 184, 80, 0, 1, 1],
    [3, 184, 80, 0, 1, 1],
    [3, 480, 112, 1, 1, 1],
    [3, 672, 112, 1, 1, 1],
    [5, 672, 160, 1, 1, 2],
    [5, 960, 160, 1, 1, 1],
    [5, 960, 160, 1, 1, 1],
];
const V3_SMALL: [[u64; 6]; 11] = [
    [3, 16, 16, 1, 0, 2],
    [3, 72, 24, 0, 0, 2],
    [3, 88, 24, 0, 0, 1],
    [5, 96, 40, 1, 1, 2],
    [5, 240, 40, 1, 1, 1],
    [5, 240, 40, 1, 1, 1],
    [5, 120, 48, 1, 1, 1],
    [5, 144, 48, 1, 1, 1],
    [5, 288, 96, 1, 1, 2],
    [5, 576, 96, 1, 1, 1],
    [5, 576, 96, 1, 1, 1],
];

pub(super) fn mobilenet_v3(large: bool, classes: u64) -> Inverted {
    let (rows, inner) = if large { (&V3_LARGE[..], 1280) } else { (&V3_SMALL[..], 1024) };
    let mut inputs = 16;
    let mut blocks = Vec::new();
    for &[kernel, expanded, outputs, weighed, hard, stride] in rows {
        blocks.push(InvertedBlock {
            stage: blocks.len() as u64,
            place: 0,
            inputs,
            expanded,
            outputs,
            kernel,
            stride,
            squeeze: if weighed == 1 { divisible(expanded / 4 * 10) } else { 0 },
            hard: hard == 1,
        });
        inputs = outputs;
    }
    Inverted { family: InvertedFamily::MobileNetV3, stem: 16, blocks, last: 6 * inputs, inner, classes }
}

/// Expansion, kernel, stride of the first, channels, blocks: one row a stage.
const EFFICIENT: [[u64; 5]; 7] = [
    [1, 3, 1, 16, 1],
    [6, 3, 2, 24, 2],
    [6, 5, 2, 40, 2],
    [6, 3, 2, 80, 3],
    [6, 5, 1, 112, 3],
    [6, 5, 2, 192, 4],
    [6, 3, 1, 320, 1],
];

/// `width` and `depth` are the multipliers in tenths.
pub(super) fn efficientnet(width: u64, depth: u64, classes: u64) -> Inverted {
    let stem = divisible(32 * width);
    let mut inputs = stem;
    let mut blocks = Vec::new();
    for (stage, [expansion, kernel, first, channels, count]) in (0..).zip(EFFICIENT) {
        let outputs = divisible(channels * width);
        for place in 0..(count * depth).div_ceil(10) {
            blocks.push(InvertedBlock {
                stage,
                place,
                inputs,
                expanded: divisible(inputs * expansion * 10),
                outputs,
                kernel,
                stride: if place == 0 { first } else { 1 },
                squeeze: (inputs / 4).max(1),
                hard: false,
            });
            inputs = outputs;
        }
    }
    Inverted { family: InvertedFamily::EfficientNet, stem, blocks, last: 4 * inputs, inner: 0, classes }
}
