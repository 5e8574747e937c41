//! The functions of the table and the structures, from a release's headers as a compiler reads them.
//!
//! One file that includes the plug-in's header is compiled with debug information, which has both in full: each virtual
//! function with its place in the table and its name in the C++ ABI, and each member with its offset. (The dump of
//! classes that g++ writes has the functions without their arguments, and no members.)

use crate::shell::{self, command};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::Path;

/// A structure: its size, and the offsets of its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) size: usize,
    pub(super) fields: Vec<(String, usize)>,
}

/// The declarations of the headers.
#[derive(Debug)]
pub(super) struct Headers {
    /// The table's functions in their order, by their names in the C++ ABI.
    pub(super) functions: Vec<String>,
    /// Structures by their names with namespaces.
    pub(super) structures: BTreeMap<String, Shape>,
}

/// The classes whose functions the table has: the functions of each class replace those of the classes before.
const CLASSES: [&str; 4] = [
    "c10::Allocator",
    "c10::DeviceAllocator",
    "c10::cuda::CUDACachingAllocator::CUDAAllocator",
    "torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator",
];

const PROBE: &str = "#include <torch/csrc/cuda/CUDAPluggableAllocator.h>\n\
                     torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator* probe;\n";

/// Compiles the headers below `include`, for CUDA's version `cuda` (13020), in the empty folder `work`.
pub(super) fn read(include: &Path, cuda: u32, work: &Path) -> Result<Headers> {
    let (source, object) = (work.join("probe.cpp"), work.join("probe.o"));
    std::fs::write(&source, PROBE)?;
    let (source, object) = (source.display().to_string(), object.display().to_string());
    let version = format!("-DCUDART_VERSION={cuda}");
    let include = include.display().to_string();
    let args = [
        "-std=c++20",
        "-g",
        "-fno-eliminate-unused-debug-types",
        "-femit-class-debug-always",
        &version,
        "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",
        "-isystem",
        &include,
        "-isystem",
        "torch-bench/standin/include",
        "-c",
        &source,
        "-o",
        &object,
    ];
    shell::run(command(".", "g++", &args))?;
    let dump = shell::output(command(".", "readelf", &["--wide", "--debug-dump=info", &object]))?;
    parse(&dump)
}

/// An entry of the debug information, with the attributes read so far.
#[derive(Default)]
struct Item {
    tag: String,
    name: String,
    symbol: String,
}

/// Reads the output of `readelf --debug-dump=info`: entries by their depth, each followed by its attributes.
fn parse(dump: &str) -> Result<Headers> {
    let mut around: Vec<Item> = Vec::new();
    let mut structures: BTreeMap<String, Shape> = BTreeMap::new();
    let mut functions: BTreeMap<(usize, usize), String> = BTreeMap::new();
    for line in dump.lines() {
        let line = line.trim_start();
        if let Some((depth, tag)) = entry(line) {
            around.truncate(depth);
            around.push(Item { tag: tag.to_owned(), ..Item::default() });
            continue;
        }
        let Some((name, value)) = attribute(line) else { continue };
        let path = |items: &[Item]| {
            let names: Vec<&str> = items.iter().skip(1).map(|item| item.name.as_str()).collect();
            names.join("::")
        };
        let Some((item, parents)) = around.split_last_mut() else { continue };
        match (name, item.tag.as_str()) {
            ("DW_AT_name", _) => item.name = text(value).to_owned(),
            ("DW_AT_linkage_name", _) => item.symbol = text(value).to_owned(),
            ("DW_AT_byte_size", "DW_TAG_structure_type" | "DW_TAG_class_type") => {
                structures.entry(path(&around)).or_default().size = last_number(value)?;
            }
            ("DW_AT_data_member_location", "DW_TAG_member") => {
                let field = (item.name.clone(), last_number(value)?);
                structures.entry(path(parents)).or_default().fields.push(field);
            }
            ("DW_AT_vtable_elem_location", "DW_TAG_subprogram") => {
                let class = path(parents);
                if let Some(class) = CLASSES.iter().position(|known| *known == class) {
                    functions.insert((last_number(value)?, class), item.symbol.clone());
                }
            }
            _ => {}
        }
    }
    Ok(Headers { functions: table(&functions)?, structures })
}

/// The first functions of the table: the destructor, twice. Debug information does not always have it.
const DESTRUCTOR: &str = "_ZN3c109AllocatorD2Ev";

/// The last class's functions, by their places.
fn table(found: &BTreeMap<(usize, usize), String>) -> Result<Vec<String>> {
    let mut table = vec![DESTRUCTOR.to_owned(); 2];
    for ((place, _), symbol) in found.iter().filter(|((place, _), _)| *place > 1) {
        if *place + 1 == table.len() {
            table[*place] = symbol.clone();
        } else if *place == table.len() {
            table.push(symbol.clone());
        } else {
            bail!("the headers say nothing of the table's function {}", table.len());
        }
    }
    if table.len() == 2 {
        bail!("the headers declare no plug-in allocator");
    }
    Ok(table)
}

/// `<3><a1a1a>: Abbrev Number: 217 (DW_TAG_structure_type)`: the depth, and the tag; the end of a list has none.
fn entry(line: &str) -> Option<(usize, &str)> {
    let (depth, rest) = line.strip_prefix('<')?.split_once("><")?;
    let (_, rest) = rest.split_once(">: Abbrev Number: ")?;
    let tag = rest.split_once('(').map_or("", |(_, tag)| tag.trim_end().trim_end_matches(')'));
    Some((usize::from_str_radix(depth, 16).ok()?, tag))
}

/// `<a1a20>   DW_AT_byte_size   : (data2) 976`: the name, and the value.
fn attribute(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.strip_prefix('<')?.split_once('>')?;
    let (name, value) = rest.trim_start().split_once(':')?;
    Some((name.trim_end(), value.trim()))
}

/// `(strp) (offset: 0x154da9): DeviceStats`, or `(string) all`: the text.
fn text(value: &str) -> &str {
    let value = value.split_once(") ").map_or(value, |(_, text)| text);
    if value.starts_with("(offset: ") {
        value.split_once("): ").map_or(value, |(_, text)| text)
    } else {
        value
    }
}

/// The number at the end of `(data2) 976` or of `... (DW_OP_constu: 9)`.
fn last_number(value: &str) -> Result<usize> {
    let last = value.trim_end_matches(')').rsplit([' ', '\t']).next().unwrap_or("");
    let parsed = last.strip_prefix("0x").map_or_else(|| last.parse(), |hex| usize::from_str_radix(hex, 16));
    parsed.with_context(|| format!("the debug information says {value:?} where a number belongs"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    const DUMP: &str = "
 <0><b>: Abbrev Number: 1 (DW_TAG_compile_unit)
    <c>   DW_AT_name        : (strp) (offset: 0x1): probe.cpp
 <1><2d>: Abbrev Number: 2 (DW_TAG_namespace)
    <2e>   DW_AT_name        : (string) c10
 <2><30>: Abbrev Number: 3 (DW_TAG_class_type)
    <31>   DW_AT_name        : (strp) (offset: 0x9): Allocator
    <35>   DW_AT_byte_size   : (data1) 8
 <3><36>: Abbrev Number: 4 (DW_TAG_subprogram)
    <37>   DW_AT_name        : (strp) (offset: 0x9): ~Allocator
 <4><3a>: Abbrev Number: 5 (DW_TAG_formal_parameter)
    <3b>   DW_AT_type        : (ref4) <0xb7cf4>
 <4><3c>: Abbrev Number: 0
 <3><3d>: Abbrev Number: 4 (DW_TAG_subprogram)
    <3e>   DW_AT_linkage_name: (strp) (offset: 0x8): _ZN3c109Allocator8allocateEm
    <3f>   DW_AT_vtable_elem_location: (exprloc) 2 byte block: 10 2 \t(DW_OP_constu: 2)
 <3><40>: Abbrev Number: 0
 <2><41>: Abbrev Number: 6 (DW_TAG_structure_type)
    <42>   DW_AT_name        : (strp) (offset: 0x9): Stat
    <43>   DW_AT_byte_size   : (data2) 32
 <3><44>: Abbrev Number: 7 (DW_TAG_member)
    <45>   DW_AT_name        : (strp) (offset: 0x9): peak
    <46>   DW_AT_data_member_location: (data1) 8
";

    #[test]
    fn functions_and_members_are_read_with_their_places() {
        let headers = parse(DUMP).expect("a dump");
        let destructor = super::DESTRUCTOR.to_owned();
        let allocate = "_ZN3c109Allocator8allocateEm".to_owned();
        assert_eq!(headers.functions, [destructor.clone(), destructor, allocate]);
        let stat = &headers.structures["c10::Stat"];
        assert_eq!((stat.size, stat.fields.as_slice()), (32, &[("peak".to_owned(), 8)][..]));
    }

    #[test]
    fn a_table_with_a_gap_is_refused() {
        let error = parse(&DUMP.replace("constu: 2", "constu: 3")).expect_err("a gap");
        assert_eq!(error.to_string(), "the headers say nothing of the table's function 2");
    }
}
