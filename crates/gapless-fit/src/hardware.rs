//! Devices by name: memory as the driver reports it, speeds as the vendor prints them, and the links between devices.
//!
//! Memory is what `torch.cuda.mem_get_info` gives as total, which is less than the name says. Speeds are dense peaks
//! without sparsity; a search multiplies them by a stated efficiency.

/// One device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    pub name: &'static str,
    /// MiB that a process can have at most, its context included.
    pub memory_mib: u64,
    /// Dense operations a second, in units of 10^12; 0 where the device has no such unit.
    pub half_tflops: f64,
    pub fp32_tflops: f64,
    pub fp8_tflops: f64,
    /// Of its own memory, GB/s.
    pub memory_gbs: f64,
    /// To the other devices of a node, one direction, GB/s: NVLink or Infinity Fabric where there is one, else PCIe.
    pub link_gbs: f64,
    /// To the host, one direction, GB/s.
    pub host_gbs: f64,
    /// 90 for 9.0; 0 where it is not NVIDIA's.
    pub compute_capability: u32,
}

impl Gpu {
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.memory_mib << 20
    }

    #[must_use]
    pub fn is_rocm(&self) -> bool {
        self.compute_capability == 0
    }
}

#[rustfmt::skip]
const fn gpu(name: &'static str, memory_mib: u64, speeds: [f64; 3], memory_gbs: f64, link_gbs: f64, host_gbs: f64, cc: u32) -> Gpu {
    Gpu { name, memory_mib, half_tflops: speeds[0], fp32_tflops: speeds[1], fp8_tflops: speeds[2], memory_gbs, link_gbs, host_gbs, compute_capability: cc }
}

/// Name, MiB, [16-bit, fp32, fp8] Tflop/s, memory GB/s, link GB/s, host GB/s, compute capability.
#[rustfmt::skip]
pub const GPUS: &[Gpu] = &[
    gpu("h200",       143_156, [989.0, 67.0, 1979.0], 4800.0, 450.0, 55.0, 90),
    gpu("h200-nvl",   143_156, [836.0, 60.0, 1671.0], 4800.0, 450.0, 55.0, 90),
    gpu("h100",        81_008, [989.0, 67.0, 1979.0], 3350.0, 450.0, 55.0, 90),
    gpu("h100-pcie",   81_008, [756.0, 51.0, 1513.0], 2000.0, 55.0, 55.0, 90),
    gpu("h100-nvl",    95_320, [836.0, 60.0, 1671.0], 3900.0, 300.0, 55.0, 90),
    gpu("h800",        81_008, [989.0, 67.0, 1979.0], 3350.0, 200.0, 55.0, 90),
    gpu("h20",         97_280, [148.0, 44.0, 296.0], 4000.0, 450.0, 55.0, 90),
    gpu("gh200-96",    95_320, [989.0, 67.0, 1979.0], 4000.0, 450.0, 400.0, 90),
    gpu("b200",       182_630, [2250.0, 75.0, 4500.0], 8000.0, 900.0, 55.0, 100),
    gpu("gb200",      188_416, [2500.0, 80.0, 5000.0], 8000.0, 900.0, 200.0, 100),
    gpu("b300",       274_432, [2250.0, 75.0, 4500.0], 8000.0, 900.0, 110.0, 103),
    gpu("a100-80",     81_050, [312.0, 19.5, 0.0], 2039.0, 300.0, 25.0, 80),
    gpu("a100-40",     40_338, [312.0, 19.5, 0.0], 1555.0, 300.0, 25.0, 80),
    gpu("a800",        81_050, [312.0, 19.5, 0.0], 2039.0, 200.0, 25.0, 80),
    gpu("a30",         24_062, [165.0, 10.3, 0.0], 933.0, 100.0, 25.0, 80),
    gpu("a10",         22_515, [125.0, 31.2, 0.0], 600.0, 25.0, 25.0, 86),
    gpu("a40",         45_416, [149.7, 37.4, 0.0], 696.0, 56.0, 25.0, 86),
    gpu("a6000",       48_568, [154.8, 38.7, 0.0], 768.0, 56.0, 25.0, 86),
    gpu("3090",        24_248, [71.0, 35.6, 0.0], 936.0, 56.0, 25.0, 86),
    gpu("l40s",        45_458, [362.0, 91.6, 733.0], 864.0, 25.0, 25.0, 89),
    gpu("l40",         45_458, [181.0, 90.5, 362.0], 864.0, 25.0, 25.0, 89),
    gpu("l4",          22_478, [121.0, 30.3, 242.0], 300.0, 25.0, 25.0, 89),
    gpu("rtx6000-ada", 48_512, [364.0, 91.1, 728.0], 960.0, 25.0, 25.0, 89),
    gpu("4090",        24_080, [165.2, 82.6, 330.0], 1008.0, 25.0, 25.0, 89),
    gpu("4080",        15_936, [97.5, 48.7, 195.0], 717.0, 25.0, 25.0, 89),
    gpu("5090",        32_107, [209.5, 104.8, 419.0], 1792.0, 55.0, 55.0, 120),
    gpu("rtx-pro-6000", 97_250, [503.8, 125.0, 1007.0], 1792.0, 55.0, 55.0, 120),
    gpu("v100-16",     16_144, [125.0, 15.7, 0.0], 900.0, 150.0, 12.0, 70),
    gpu("v100-32",     32_494, [125.0, 15.7, 0.0], 900.0, 150.0, 12.0, 70),
    gpu("t4",          14_930, [65.0, 8.1, 0.0], 300.0, 12.0, 12.0, 75),
    gpu("mi210",       65_520, [181.0, 22.6, 0.0], 1638.0, 300.0, 25.0, 0),
    gpu("mi250x",      65_520, [191.5, 23.9, 0.0], 1638.0, 300.0, 25.0, 0),
    gpu("mi300x",     196_592, [1307.0, 163.4, 2615.0], 5300.0, 448.0, 55.0, 0),
    gpu("mi325x",     262_128, [1307.0, 163.4, 2615.0], 6000.0, 448.0, 55.0, 0),
    gpu("mi355x",     294_896, [2500.0, 157.3, 5000.0], 8000.0, 538.0, 55.0, 0),
];

/// Other names under which devices go.
const ALIASES: &[(&str, &str)] = &[
    ("h100-80", "h100"),
    ("h100-sxm", "h100"),
    ("h200-sxm", "h200"),
    ("a100", "a100-80"),
    ("a100-80gb", "a100-80"),
    ("a100-40gb", "a100-40"),
    ("a10g", "a10"),
    ("rtx4090", "4090"),
    ("rtx5090", "5090"),
    ("rtx3090", "3090"),
    ("rtx4080", "4080"),
    ("v100", "v100-16"),
    ("rtx-a6000", "a6000"),
];

/// No such device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no GPU is known as {asked:?}: did you mean {nearest:?}? Or give its memory, as --memory 24GiB. Known: {known}"
)]
pub struct UnknownGpu {
    pub asked: String,
    pub nearest: &'static str,
    pub known: String,
}

/// A device by its name, whatever its case, with `_` or spaces for `-`, with or without `nvidia`.
pub fn find(name: &str) -> Result<&'static Gpu, UnknownGpu> {
    let plain = name.trim().to_ascii_lowercase().replace(['_', ' '], "-");
    let plain = plain.trim_start_matches("nvidia-").trim_start_matches("geforce-").trim_start_matches("amd-");
    let squeeze = |name: &str| name.replace('-', "");
    let known = |wanted: &str| GPUS.iter().find(|gpu| gpu.name == wanted);
    let alias =
        ALIASES.iter().find(|(alias, _)| squeeze(alias) == squeeze(plain)).map_or(plain, |&(_, name)| name);
    let squeezed = squeeze(alias);
    if let Some(gpu) = known(alias).or_else(|| GPUS.iter().find(|gpu| squeeze(gpu.name) == squeezed)) {
        return Ok(gpu);
    }
    let nearest = GPUS.iter().map(|gpu| gpu.name).min_by_key(|name| distance(name, plain)).unwrap_or("h100");
    let known = GPUS.iter().map(|gpu| gpu.name).collect::<Vec<_>>().join(", ");
    Err(UnknownGpu { asked: name.to_owned(), nearest, known })
}

/// A device of which only the memory is known: an A100's speeds, so that costs can still be compared.
#[must_use]
pub fn unnamed(memory: u64) -> Gpu {
    Gpu { name: "unnamed", memory_mib: memory >> 20, ..*find("a100-80").expect("it is in the table") }
}

/// Letters to insert, delete or change.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

/// Equal nodes of equal devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    pub gpu: Gpu,
    pub gpus_per_node: u64,
    pub nodes: u64,
    /// Between nodes, for each device, one direction, GB/s: 50 is a 400 Gb/s adapter for each.
    pub network_gbs: f64,
    /// Of the host, for each device: what offloading can use.
    pub host_memory: u64,
}

impl Cluster {
    #[must_use]
    pub fn new(gpu: Gpu, gpus_per_node: u64, nodes: u64) -> Cluster {
        Cluster { gpu, gpus_per_node, nodes, network_gbs: 50.0, host_memory: 128 << 30 }
    }

    #[must_use]
    pub fn gpus(&self) -> u64 {
        self.gpus_per_node * self.nodes
    }

    /// Bytes a second between ranks of a group that spans so many consecutive devices.
    #[must_use]
    pub fn bandwidth(&self, span: u64) -> f64 {
        1e9 * if span <= self.gpus_per_node {
            self.gpu.link_gbs
        } else {
            self.network_gbs.min(self.gpu.link_gbs)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_people_write_them() {
        for (text, name) in [
            ("H200", "h200"),
            ("a100", "a100-80"),
            ("RTX 4090", "4090"),
            ("NVIDIA H100 NVL", "h100-nvl"),
            ("mi300x", "mi300x"),
            ("A100 40GB", "a100-40"),
            ("l40S", "l40s"),
        ] {
            assert_eq!(find(text).map(|gpu| gpu.name), Ok(name), "{text}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let error = find("h2000").expect_err("unknown");
        assert_eq!(error.nearest, "h200");
        assert!(error.to_string().contains("--memory"), "{error}");
        assert!(find("").is_err());
    }

    #[test]
    fn the_table_is_in_its_units() {
        for gpu in GPUS {
            assert!((14_000..300_000).contains(&gpu.memory_mib), "{}", gpu.name);
            assert!(
                gpu.half_tflops >= gpu.fp32_tflops && gpu.host_gbs <= gpu.link_gbs.max(400.0),
                "{}",
                gpu.name
            );
            assert_eq!(find(gpu.name), Ok(gpu), "a name of its own");
        }
        assert_eq!(unnamed(24 << 30).memory(), 24 << 30);
    }

    #[test]
    fn a_group_within_a_node_uses_its_link() {
        let cluster = Cluster::new(*find("h100").expect("known"), 8, 4);
        assert_eq!((cluster.gpus(), cluster.bandwidth(8), cluster.bandwidth(9)), (32, 450e9, 50e9));
    }
}
