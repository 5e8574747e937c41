//! The text of an out-of-memory error of XLA, as JAX prints it and as logs have it: the request, the allocator's limit,
//! what the program takes, and its largest buffers. Text around it is passed over. The contract is `gapless.oom-xla/1`.
//!
//! Sizes in the text are rounded by XLA (6.15GiB), so sums are too.

use crate::text::table::{Align, Table};
use crate::text::{BOLD, DIM, RED, RESET, bytes, clean, indent, plural};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

pub const SCHEMA: &str = "gapless.oom-xla/1";

/// Groups of buffers that are shown.
const SHOWN: usize = 8;

/// An error of XLA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct XlaOom {
    pub schema: String,
    pub source: String,
    /// Bytes of the last request that failed.
    pub asked: Option<u64>,
    pub allocator: String,
    pub device: Option<u32>,
    /// Requests that failed in the text.
    pub failures: u64,
    /// True if the compiler failed while it tried out kernels, and not a program that ran.
    pub while_compiling: bool,
    /// The allocator's limit, and its bytes in use, if the log has them.
    pub limit: Option<u64>,
    pub in_use: Option<u64>,
    /// The program's memory by kind: `parameter`, `constant`, `maybe_live_out`, `preallocated temp`, `total`.
    pub program: Vec<(String, u64)>,
    /// The largest buffers at the program's peak, the most bytes first.
    pub buffers: Vec<XlaBuffers>,
}

/// Buffers of one operator; the numbers of layers are `*`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct XlaBuffers {
    pub bytes: u64,
    pub count: u64,
    pub operator: String,
    pub shape: String,
}

impl XlaOom {
    /// The error in `text`; `None` if there is none. `source` is the user's name of it.
    #[must_use]
    pub fn read(text: &str, source: &str) -> Option<XlaOom> {
        let mut own = XlaOom { schema: SCHEMA.to_owned(), source: source.to_owned(), ..XlaOom::default() };
        let mut buffer: Option<XlaBuffers> = None;
        for line in text.lines() {
            own.request(line);
            let words = line.trim();
            // `maybe_live_out allocation:  12.0MiB`.
            if let Some((name, size)) = words.split_once(" allocation:")
                && let Some(size) = size.split_whitespace().next().and_then(sized)
            {
                own.program.retain(|(known, _)| known != name);
                own.program.push((name.to_owned(), size));
            }
            for (key, place) in [("Limit:", &mut own.limit), ("InUse:", &mut own.in_use)] {
                if let Some(number) = words.rsplit_once(key).and_then(|(_, n)| n.trim().parse().ok()) {
                    *place = Some(number);
                }
            }
            let value = |key: &str| words.strip_prefix(key).map(|value| value.trim().to_owned());
            if let Some(size) = value("Size:").as_deref().and_then(sized) {
                own.take(buffer.replace(XlaBuffers { bytes: size, count: 1, ..XlaBuffers::default() }));
            } else if let Some(buffer) = &mut buffer {
                if let Some(operator) = value("Operator:") {
                    let name = operator.split_once("op_name=\"").and_then(|(_, rest)| rest.split_once('"'));
                    buffer.operator = layers(name.map_or(operator.as_str(), |(name, _)| name));
                } else if let Some(label) = value("XLA Label:").filter(|_| buffer.operator.is_empty()) {
                    buffer.operator = label;
                } else if let Some(shape) = value("Shape:").or_else(|| value("Entry Parameter Subshape:")) {
                    buffer.shape = shape.split('{').next().unwrap_or("").to_owned();
                }
            }
        }
        own.take(buffer);
        own.buffers.sort_by(|x, y| y.bytes.cmp(&x.bytes).then(x.operator.cmp(&y.operator)));
        (own.failures > 0 || !own.buffers.is_empty()).then_some(own)
    }

    /// A request that failed: an error, or a line of the allocator.
    fn request(&mut self, line: &str) {
        for mark in ["Out of memory while trying to allocate ", "ran out of memory trying to allocate "] {
            let Some((before, rest)) = line.split_once(mark) else { continue };
            // A trial that the compiler does without is no failure.
            if rest.contains("this is not a failure") {
                continue;
            }
            self.failures += 1;
            let exact = rest.split_once("(rounded to ").and_then(|(_, n)| n.split(')').next()?.parse().ok());
            let words: Vec<&str> = rest.split_whitespace().collect();
            // `17179869184 bytes`, and `16.00GiB` with a full stop.
            let said = words.first().and_then(|word| match words.get(1) {
                Some(unit) if unit.starts_with("bytes") => word.parse().ok(),
                _ => sized(word.trim_end_matches(['.', ','])),
            });
            self.asked = exact.or(said).or(self.asked);
            if let Some(name) = before.rsplit_once("Allocator (").and_then(|(_, name)| name.split(')').next())
            {
                self.allocator = name.to_owned();
            }
            let after = |word: &str| words.iter().position(|&w| w == word).and_then(|at| words.get(at + 1));
            if let Some(name) = after("allocator") {
                self.allocator = (*name).to_owned();
            }
            self.device =
                after("device").and_then(|word| word.trim_end_matches('.').parse().ok()).or(self.device);
        }
        self.while_compiling |=
            line.contains("Failed to get configs") || line.contains("Could not get config for HLO");
    }

    fn take(&mut self, buffer: Option<XlaBuffers>) {
        let Some(buffer) = buffer else { return };
        let same = |own: &&mut XlaBuffers| own.operator == buffer.operator && own.shape == buffer.shape;
        match self.buffers.iter_mut().find(same) {
            Some(own) => {
                own.bytes = own.bytes.saturating_add(buffer.bytes);
                own.count += 1;
            }
            None => self.buffers.push(buffer),
        }
    }
}

/// `6.15GiB`, `512.0KiB`, `80B`.
fn sized(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let number: f64 = text[..unit].parse().ok()?;
    let power = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|&known| known == &text[unit..])?;
    Some((number * 1024f64.powi(power as i32)) as u64)
}

/// `block_3/mlp` as `block_*/mlp`: numbers behind an underscore or alone.
fn layers(name: &str) -> String {
    let part = |part: &str| -> String {
        let bare = part.trim_end_matches(|c: char| c.is_ascii_digit());
        let is_number = bare.len() < part.len() && (bare.is_empty() || bare.ends_with('_'));
        if is_number { format!("{bare}*") } else { part.to_owned() }
    };
    name.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// The error as JSON.
///
/// # Errors
/// Never in practice: the value has only texts and numbers.
pub fn json(own: &XlaOom) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(own).map(|text| text + "\n")
}

/// The error for a terminal.
#[must_use]
pub fn render(own: &XlaOom) -> String {
    let mut out = format!("{BOLD}{}{RESET}  {DIM}error of XLA{RESET}\n", clean(&own.source));
    let asked = own.asked.map_or("a request".to_owned(), bytes);
    let device = own.device.map_or(String::new(), |device| format!("device {device}"));
    let _ = writeln!(out, "\n{RED}Out of memory{RESET} {BOLD}{asked} asked for{RESET}  {DIM}{device}{RESET}");
    let _ = writeln!(out, "\n  {BOLD}Why{RESET}");
    for sentence in reasons(own) {
        indent(&mut out, "    ", &sentence, "");
    }
    if !own.buffers.is_empty() {
        let _ = writeln!(out, "\n  {BOLD}The program's largest buffers{RESET}");
        let mut table = Table::new(&[Align::Right, Align::Right, Align::Left, Align::Left]).names(3, 20);
        for row in own.buffers.iter().take(SHOWN) {
            let cells =
                vec![bytes(row.bytes), format!("{} ×", row.count), clean(&row.shape), clean(&row.operator)];
            table.row("", cells);
        }
        table.render(&mut out, "    ");
    }
    let _ = writeln!(out, "\n  {BOLD}What to do{RESET}");
    for sentence in steps(own) {
        indent(&mut out, "    ", &sentence, "");
    }
    out
}

fn reasons(own: &XlaOom) -> Vec<String> {
    let mut told = Vec::new();
    if own.while_compiling {
        told.push(
            "the compiler tried out kernels on the card, and had no room for their operands".to_owned(),
        );
    }
    match (own.limit, own.in_use, own.asked) {
        (Some(limit), Some(used), Some(asked)) if used.saturating_add(asked) <= limit => told.push(format!(
            "{} of {} were in use: no gap was large enough (fragmentation)",
            bytes(used),
            bytes(limit)
        )),
        (Some(limit), Some(used), _) => {
            told.push(format!(
                "{} of the {} that the allocator may take were in use",
                bytes(used),
                bytes(limit)
            ));
        }
        _ => {}
    }
    for (name, size) in own.program.iter().filter(|(_, size)| *size > 0) {
        let name = match name.as_str() {
            "parameter" => "arguments",
            "maybe_live_out" => "results",
            "preallocated temp" => "temporaries",
            "constant" => "constants",
            "total" => "in all",
            other => other,
        };
        told.push(format!("the program takes {} of {}", bytes(*size), clean(name)));
    }
    if own.failures > 1 {
        told.push(format!("{} failed; this is the last", plural(own.failures, "request")));
    }
    if told.is_empty() {
        told.push("the text does not say how much was in use".to_owned());
    }
    told
}

fn steps(own: &XlaOom) -> Vec<String> {
    let mut told = vec![
        "XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 lets the allocator take more than 75 % of the card".to_owned(),
        "donate the state (jax.jit with donate_argnums), or recompute activations: gapless.jax.choose compares \
         settings without a card"
            .to_owned(),
        "XLA_FLAGS=\"--xla_dump_to=dump --xla_dump_hlo_as_proto\" writes the whole plan: `gapless report dump` shows all \
         buffers by scope"
            .to_owned(),
    ];
    if own.while_compiling {
        told.insert(0, "XLA_FLAGS=--xla_gpu_autotune_level=0 compiles without trying".to_owned());
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
INFO: step 12
W1119 15:22:46 30014 bfc_allocator.cc:598] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00GiB (rounded to 1073741824) from the lower end requested by op
W1119 bfc_allocator.cc:371] Allocator (GPU_0_bfc) ran out of memory trying to allocate 48.00MiB. The caller indicates that this is not a failure, but this may mean gains
Limit:                      4504682496
InUse:                      4294967296
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6.15GiB with allocator GPU_0_bfc on device 0.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    1.00GiB
              constant allocation:         0B
     preallocated temp allocation:    6.15GiB
Peak buffers:
\tBuffer 1:
\t\tSize: 2.00GiB
\t\tOperator: op_name=\"jit(step)/jvp(net)/block_0/mlp/dot_general\" source_file=\"a.py\"
\t\tXLA Label: fusion
\t\tShape: f32[8,1024]{1,0}
\t\t==========================
\tBuffer 2:
\t\tSize: 2.00GiB
\t\tOperator: op_name=\"jit(step)/jvp(net)/block_11/mlp/dot_general\"
\t\tXLA Label: fusion
\t\tShape: f32[8,1024]{1,0}
\t\t==========================
\tBuffer 3:
\t\tSize: 512.0MiB
\t\tEntry Parameter Subshape: f32[256]
";

    #[test]
    fn an_error_is_read_from_a_log_with_other_lines() {
        let own = XlaOom::read(TEXT, "log.txt").expect("an error");
        assert_eq!((own.failures, own.device, own.allocator.as_str()), (2, Some(0), "GPU_0_bfc"));
        assert_eq!(own.asked, Some((6.15 * 1024.0 * 1024.0 * 1024.0) as u64));
        assert_eq!((own.limit, own.in_use), (Some(4_504_682_496), Some(4_294_967_296)));
        assert_eq!(own.program.len(), 3);
        assert_eq!(own.buffers.len(), 2, "layers are one row");
        assert_eq!((own.buffers[0].bytes, own.buffers[0].count), (4 << 30, 2));
        assert_eq!(own.buffers[0].operator, "jit(step)/jvp(net)/block_*/mlp/dot_general");
        assert_eq!(own.buffers[1].shape, "f32[256]");
        let text = render(&own);
        assert!(text.contains("temporaries") && text.contains("2 ×"), "{text}");
        let again: XlaOom = serde_json::from_str(&json(&own).expect("JSON")).expect("the contract");
        assert_eq!(again, own);
    }

    #[test]
    fn other_texts_have_none_and_no_text_is_too_odd() {
        assert_eq!(XlaOom::read("all is well\n", "log.txt"), None);
        for text in [
            "Out of memory while trying to allocate ",
            "Size:\nSize: xGiB\nOut of memory while trying to allocate 17179869184 bytes.",
        ] {
            let own = XlaOom::read(text, "x").expect("an error");
            assert!(own.asked.is_none() || own.asked == Some(17_179_869_184));
            assert!(!render(&own).is_empty());
        }
    }
}
