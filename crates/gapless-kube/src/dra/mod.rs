//! Objects of Dynamic Resource Allocation (`resource.k8s.io/v1`, Kubernetes 1.34): GPUs whose memory several claims
//! share by bytes, for clusters whose own scheduler is to place pods by GPU memory.
//!
//! ```text
//! ResourceSlice            the GPUs of a node              [`slices`], kept up to date by [`publish`]
//! DeviceClass              what claims name                [`class`]
//! ResourceClaimTemplate    what a pod's annotations ask    [`claims`]
//! CDI device               what a claim's container gets   [`driver`]
//! ```
//!
//! Sharing needs the feature gate DRAConsumableCapacity (KEP 5075, on by default from 1.36). Without it the API server
//! drops those members, and a GPU goes to one claim as a whole. Claims carry a selector for the memory too, so that
//! such a GPU is large enough.

pub mod claims;
pub mod driver;
pub mod publish;
pub mod slices;

use serde_json::{Value, json};

pub const API_VERSION: &str = "resource.k8s.io/v1";
/// The driver, and so the domain of attributes and capacities.
pub const DRIVER: &str = "gapless.dev";
pub const CLASS: &str = "gpu.gapless.dev";
/// Capacity: bytes of the GPU.
pub const MEMORY: &str = "memory";
/// Attributes.
pub const MODEL: &str = "model";
pub const UUID: &str = "uuid";
pub const INDEX: &str = "index";
/// The device's own name: different for each device of a node.
pub const DEVICE: &str = "device";
/// The step in bytes by which claims take memory.
pub const STEP: u64 = 1 << 20;
/// The most bytes of an attribute's string.
const MOST_TEXT: usize = 64;

/// The class of all GPUs that Gapless publishes.
pub fn class() -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == {DRIVER:?}")}}]},
    })
}

/// The text, cut to the length of an attribute.
fn short(text: &str) -> &str {
    let mut end = text.len().min(MOST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A number of bytes in the API server's canonical form: the largest binary suffix without a fraction.
fn quantity(bytes: u64) -> String {
    let suffixes = ["Ei", "Pi", "Ti", "Gi", "Mi", "Ki"];
    let sizes = [60, 50, 40, 30, 20, 10];
    let fits = |bits: &u32| bytes > 0 && bytes.trailing_zeros() >= *bits;
    match sizes.iter().position(fits) {
        Some(at) => format!("{}{}", bytes >> sizes[at], suffixes[at]),
        None => bytes.to_string(),
    }
}

/// True if this is a DNS subdomain, as names of objects are.
fn is_subdomain(name: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let label = |part: &str| {
        !part.is_empty() && part.chars().all(inside) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// True if this is a DNS label, as names of devices are.
fn is_label(name: &str) -> bool {
    name.len() <= 63 && !name.contains('.') && is_subdomain(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_those_that_the_api_server_keeps() {
        for (bytes, right) in [
            (0, "0"),
            (1, "1"),
            (1 << 10, "1Ki"),
            (143_771 << 20, "143771Mi"),
            (80 << 30, "80Gi"),
            (3 << 40, "3Ti"),
            (1 << 50, "1Pi"),
            (1 << 60, "1Ei"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(quantity(bytes), right);
            assert_eq!(crate::quantity::whole(right), Ok(bytes), "and they are read as the same");
        }
        assert_eq!(quantity((80 << 30) + 1), "85899345921");
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(short("NVIDIA H200"), "NVIDIA H200");
        let long = "ü".repeat(40);
        assert_eq!(short(&long).len(), 64);
        assert_eq!(short(&format!("x{long}")).len(), 63);
    }
}
