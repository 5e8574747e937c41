//! The process that was recorded, as names and values: a writer may add names, and an older reader leaves them out.

use super::encoding::{Cursor, Fault, put_text};
use crate::trace::Process;

/// Appends the known fields of `process`; returns the number of its entries.
pub(super) fn put(out: &mut Vec<u8>, process: &Process) -> usize {
    let number = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    let entries = [
        ("program", process.program.clone()),
        ("pid", number(process.pid)),
        ("host", process.host.clone()),
        ("rank", number(process.rank)),
        ("world", number(process.world)),
        ("torch", process.torch.clone()),
        ("allocator", process.allocator.clone()),
    ];
    let mut count = 0;
    for (name, value) in entries.iter().filter(|(_, value)| !value.is_empty()) {
        put_text(out, name);
        put_text(out, value);
        count += 1;
    }
    count
}

/// The entries up to the end of the block.
pub(super) fn get(from: &mut Cursor<'_>) -> Result<Process, Fault> {
    let mut process = Process::default();
    while !from.is_empty() {
        let (name, value) = (from.text()?, from.text()?);
        let number =
            || value.parse::<u64>().map(Some).map_err(|_| format!("{name}: {value:?} is not a number"));
        match name {
            "program" => value.clone_into(&mut process.program),
            "pid" => process.pid = number()?,
            "host" => value.clone_into(&mut process.host),
            "rank" => process.rank = number()?,
            "world" => process.world = number()?,
            "torch" => value.clone_into(&mut process.torch),
            "allocator" => value.clone_into(&mut process.allocator),
            _ => {}
        }
    }
    Ok(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_back_and_unknown_names_are_left_out() {
        let process = Process {
            program: "python train.py".to_owned(),
            pid: Some(4711),
            host: "node-3".to_owned(),
            rank: Some(0),
            world: None,
            torch: "2.11.0+cu130".to_owned(),
            allocator: "gapless 0.1.0".to_owned(),
        };
        let mut bytes = Vec::new();
        assert_eq!(put(&mut bytes, &process), 6);
        put_text(&mut bytes, "colour");
        put_text(&mut bytes, "blue");
        assert_eq!(get(&mut Cursor::new(&bytes)), Ok(process));
        assert_eq!(get(&mut Cursor::new(&[])), Ok(Process::default()));
        let mut wrong = Vec::new();
        put_text(&mut wrong, "rank");
        put_text(&mut wrong, "first");
        assert!(get(&mut Cursor::new(&wrong)).is_err());
        assert!(get(&mut Cursor::new(&bytes[..bytes.len() - 1])).is_err(), "cut short");
    }
}
