//! Devices by name: memory as the driver reports it, speeds as the vendor prints them, and the links between devices.
//!
//! Memory is the total of `torch.cuda.mem_get_info`, which is less than the name says. Speeds are dense peaks without
//! sparsity; a search multiplies them by a stated efficiency.

/// One device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    pub name: &'static str,
    /// MiB that a process can have at most, its context included.
    pub memory_mib: u64,
    /// Dense operations a second, in units of 10^12; 0 if the device has no such unit.
    pub half_tflops: f64,
    pub fp32_tflops: f64,
    pub fp8_tflops: f64,
    /// Of its own memory, GB/s.
    pub memory_gbs: f64,
    /// To the other devices of a node, one direction, GB/s: NVLink or Infinity Fabric if there is one, else PCIe.
    pub link_gbs: f64,
    /// To the host, one direction, GB/s.
    pub host_gbs: f64,
    /// 90 for 9.0; 0 if it is not NVIDIA's.
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

    /// True if it computes in bfloat16: NVIDIA's from Ampere on, and all of AMD's here.
    #[must_use]
    pub fn has_bf16(&self) -> bool {
        self.is_rocm() || self.compute_capability >= 80
    }

    #[must_use]
    pub fn has_fp8(&self) -> bool {
        self.fp8_tflops > 0.0
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

/// Further names of devices.
const ALIASES: &[(&str, &str)] = &[
    ("h100-80", "h100"),
    ("h200-141", "h200"),
    ("a10g", "a10"),
    ("rtx4090", "4090"),
    ("rtx5090", "5090"),
    ("rtx3090", "3090"),
    ("rtx4080", "4080"),
    ("rtx-a6000", "a6000"),
    ("6000-ada", "rtx6000-ada"),
    ("pro-6000-blackwell", "rtx-pro-6000"),
    ("gh200-480", "gh200-96"),
];

/// Names of cards that were sold with different memories.
const AMBIGUOUS: &[(&str, &[&str])] = &[
    ("a100", &["a100-80", "a100-40"]),
    ("v100", &["v100-16", "v100-32"]),
    ("6000", &["a6000", "rtx6000-ada", "rtx-pro-6000"]),
    ("rtx6000", &["a6000", "rtx6000-ada", "rtx-pro-6000"]),
];

/// Words of a vendor's name that tell no two devices apart.
const NOISE: [&str; 18] = [
    "nvidia",
    "geforce",
    "tesla",
    "quadro",
    "amd",
    "instinct",
    "gpu",
    "sxm",
    "sxm2",
    "sxm3",
    "sxm4",
    "sxm5",
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "generation",
    "edition",
];

/// The error for a name that is no known device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownGpu {
    pub asked: String,
    /// Devices that the name may mean; none if nothing is like it.
    pub near: Vec<&'static str>,
    /// True if all of `near` are sold under that name.
    pub is_ambiguous: bool,
}

impl std::fmt::Display for UnknownGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_ambiguous {
            return write!(f, "{:?} may be any of {}", self.asked, self.near.join(", "));
        }
        write!(f, "no GPU is known as {:?}", self.asked)
    }
}

impl std::error::Error for UnknownGpu {}

impl UnknownGpu {
    /// The next step for the user.
    #[must_use]
    pub fn help(&self) -> String {
        let list = "`gapless fit --gpus-list` lists the known ones";
        if self.is_ambiguous {
            return format!("give one of them, or the card's memory, as --memory 24GiB; {list}");
        }
        let near = match self.near.as_slice() {
            [] => String::new(),
            [one] => format!("; the nearest known name is {one}"),
            many => format!("; near names are {}", many.join(", ")),
        };
        format!("give its memory instead, as --memory 24GiB{near}; {list}")
    }
}

/// A device by its name, as people or drivers write it: `RTX 4090`, `NVIDIA A100-SXM4-80GB`. A name of several devices,
/// or of none, is an error: the memory of another card would be a wrong answer.
pub fn find(name: &str) -> Result<&'static Gpu, UnknownGpu> {
    let asked = plain(name);
    let known = |wanted: &str| GPUS.iter().find(|gpu| plain(gpu.name) == wanted);
    let alias = ALIASES.iter().find(|(alias, _)| plain(alias) == asked).map(|(_, name)| plain(name));
    if let Some(gpu) = known(&asked).or_else(|| known(&alias?)) {
        return Ok(gpu);
    }
    let error = |near: &[&'static str], is_ambiguous| {
        Err(UnknownGpu { asked: name.to_owned(), near: near.to_vec(), is_ambiguous })
    };
    if let Some((_, several)) = AMBIGUOUS.iter().find(|(name, _)| *name == asked) {
        return error(several, true);
    }
    let mut near: Vec<(usize, &'static str)> = GPUS
        .iter()
        .map(|gpu| (plain(gpu.name), gpu.name))
        .filter(|(own, _)| {
            let shorter = own.len().min(asked.len());
            let begins = shorter >= 3 && (own.starts_with(&asked) || asked.starts_with(own.as_str()));
            begins || distance(own, &asked) <= shorter / 3
        })
        .map(|(own, name)| (distance(&own, &asked), name))
        .collect();
    near.sort_by_key(|(distance, _)| *distance);
    let near: Vec<&str> = near.into_iter().take(3).map(|(_, name)| name).collect();
    error(&near, false)
}

/// A name in small letters and digits, without the words in `NOISE`: `80GB` is 80, `RTX 4090` is rtx4090.
fn plain(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !NOISE.contains(word));
    words
        .map(|word| {
            let number = word
                .strip_suffix("gib")
                .or_else(|| word.strip_suffix("gb"))
                .or_else(|| word.strip_suffix('g'));
            match number.filter(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())) {
                Some(number) => number,
                None => word,
            }
        })
        .collect()
}

/// Name of a device of which only the memory is known.
pub const UNNAMED: &str = "unnamed";

/// A device of which only the memory is known: an A100's speeds, so that costs can still be compared.
#[must_use]
pub fn unnamed(memory: u64) -> Gpu {
    Gpu { name: UNNAMED, memory_mib: memory >> 20, ..*find("a100-80").expect("it is in the table") }
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
    /// Of the host, for each device: the memory that offloading can use.
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
    fn names_are_found_as_people_and_drivers_write_them() {
        for (text, name) in [
            ("H200", "h200"),
            ("a100-80", "a100-80"),
            ("RTX 4090", "4090"),
            ("rtx 5090", "5090"),
            ("NVIDIA H100 NVL", "h100-nvl"),
            ("mi300x", "mi300x"),
            ("A100 40GB", "a100-40"),
            ("a100_80g", "a100-80"),
            ("l40S", "l40s"),
            ("a10", "a10"),
            // As nvidia-smi prints them.
            ("NVIDIA A100-SXM4-80GB", "a100-80"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H100 PCIe", "h100-pcie"),
            ("Tesla T4", "t4"),
            ("Tesla V100-SXM2-16GB", "v100-16"),
            ("NVIDIA GeForce RTX 3090", "3090"),
            ("NVIDIA RTX A6000", "a6000"),
            ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
            ("NVIDIA A10G", "a10"),
            ("AMD Instinct MI300X", "mi300x"),
            ("NVIDIA GH200 480GB", "gh200-96"),
        ] {
            assert_eq!(find(text).map(|gpu| gpu.name), Ok(name), "{text}");
        }
    }

    #[test]
    fn another_card_is_never_taken_silently() {
        let near = |name: &str| {
            let error = find(name).expect_err(name);
            assert!(error.help().contains("--memory 24GiB"), "{name}: {}", error.help());
            (error.is_ambiguous, error.near)
        };
        assert_eq!(near("a100"), (true, vec!["a100-80", "a100-40"]));
        assert_eq!(near("NVIDIA V100"), (true, vec!["v100-16", "v100-32"]));
        assert_eq!(near("rtx 6000").1.len(), 3);
        assert_eq!(near("3080"), (false, vec!["3090", "4080"]));
        assert_eq!(near("h2000"), (false, vec!["h200", "h20"]));
        for stranger in
            ["m3", "", "gtx 1080 ti", "4090 laptop", "a100-20", "tpu-v5e", "apple", "nvidia", "mi50"]
        {
            assert!(!near(stranger).0, "{stranger}");
        }
        assert!(near("m3").1.is_empty() && near("").1.is_empty());
        // Every prefix and every card with one more letter is the card itself, or no card.
        for gpu in GPUS {
            for end in 1..gpu.name.len() {
                let cut = &gpu.name[..end];
                let found = find(cut).map(|found| found.name);
                assert!(found.is_err() || plain(found.unwrap_or_default()) == plain(cut), "{cut}");
            }
            assert!(find(&format!("{}x7", gpu.name)).is_err(), "{}", gpu.name);
        }
    }

    #[test]
    fn cards_before_ampere_have_no_bf16_and_those_before_ada_no_fp8() {
        let names = |has: fn(&Gpu) -> bool| {
            GPUS.iter().filter(|gpu| !has(gpu)).map(|gpu| gpu.name).collect::<Vec<_>>()
        };
        assert_eq!(names(Gpu::has_bf16), ["v100-16", "v100-32", "t4"]);
        assert!(names(Gpu::has_fp8).contains(&"a100-80") && !names(Gpu::has_fp8).contains(&"l40s"));
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
