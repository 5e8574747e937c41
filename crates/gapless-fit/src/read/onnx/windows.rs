//! Shape rules of windows that slide over an image: convolutions and poolings.

use super::call::{Call, sizes};

/// One axis of a window that slides.
struct Window {
    kernel: u64,
    stride: u64,
    dilation: u64,
    before: u64,
    after: u64,
}

/// The windows of a convolution or pooling, one for each axis in space.
fn windows(call: &Call<'_>, kernel: &[u64]) -> Option<Vec<Window>> {
    let number = |name: &str, at: usize, default: u64| -> Option<u64> {
        match call.node.ints(name) {
            Some(list) => u64::try_from(*list.get(at)?).ok(),
            None => Some(default),
        }
    };
    (0..kernel.len())
        .map(|at| {
            Some(Window {
                kernel: kernel[at],
                stride: number("strides", at, 1).filter(|stride| *stride > 0)?,
                dilation: number("dilations", at, 1)?,
                before: number("pads", at, 0)?,
                after: number("pads", at + kernel.len(), 0)?,
            })
        })
        .collect()
}

fn slid(call: &Call<'_>, side: u64, window: &Window) -> Option<u64> {
    let padding =
        call.node.attribute("auto_pad").and_then(|attribute| attribute.text.as_deref()).unwrap_or("NOTSET");
    if padding.starts_with("SAME") {
        return Some(side.div_ceil(window.stride));
    }
    let reach = window.kernel.checked_sub(1)?.checked_mul(window.dilation)?.checked_add(1)?;
    let pads = if padding == "VALID" { 0 } else { window.before.checked_add(window.after)? };
    let room = side.checked_add(pads)?.checked_sub(reach)?;
    let steps = if call.node.int("ceil_mode").unwrap_or(0) == 0 {
        room / window.stride
    } else {
        let steps = room.div_ceil(window.stride);
        // A window that would begin in the padding behind the input is none.
        let begins_outside = steps.checked_mul(window.stride)? >= side.checked_add(window.before)?;
        steps - u64::from(begins_outside && steps > 0)
    };
    steps.checked_add(1)
}

pub(super) fn convolution(call: &Call<'_>) -> Option<Vec<u64>> {
    let (input, weight) = (call.shape(0)?, call.shape(1)?);
    if input.len() < 3 || weight.len() != input.len() {
        return None;
    }
    let mut shape = vec![input[0], weight[0]];
    for (side, window) in input[2..].iter().zip(windows(call, &weight[2..])?) {
        shape.push(slid(call, *side, &window)?);
    }
    Some(shape)
}

pub(super) fn transposed(call: &Call<'_>) -> Option<Vec<u64>> {
    let (input, weight) = (call.shape(0)?, call.shape(1)?);
    if input.len() < 3 || weight.len() != input.len() || call.node.attribute("output_shape").is_some() {
        return None;
    }
    let groups = u64::try_from(call.node.int("group").unwrap_or(1)).ok()?;
    let mut shape = vec![input[0], weight[1].checked_mul(groups)?];
    for (at, (side, window)) in input[2..].iter().zip(windows(call, &weight[2..])?).enumerate() {
        let extra =
            call.node.ints("output_padding").map_or(Some(0), |list| u64::try_from(*list.get(at)?).ok())?;
        let reach = window.kernel.checked_sub(1)?.checked_mul(window.dilation)?.checked_add(1)?;
        let whole =
            side.checked_sub(1)?.checked_mul(window.stride)?.checked_add(reach)?.checked_add(extra)?;
        shape.push(whole.checked_sub(window.before.checked_add(window.after)?)?);
    }
    Some(shape)
}

pub(super) fn pool(call: &Call<'_>) -> Option<Vec<u64>> {
    let input = call.shape(0).filter(|input| input.len() >= 3)?;
    let kernel = sizes(call.node.ints("kernel_shape"))?;
    if kernel.len() != input.len() - 2 {
        return None;
    }
    let mut shape = input[..2].to_vec();
    for (side, window) in input[2..].iter().zip(windows(call, &kernel)?) {
        shape.push(slid(call, *side, &window)?);
    }
    Some(shape)
}
