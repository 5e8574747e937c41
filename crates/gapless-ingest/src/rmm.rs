//! RMM's CSV log: `Thread,Time,Action,Pointer,Size,Stream`, as its logging resource adaptor writes it.
//!
//! The log has one line for each call; a deallocation is whole at once, so it becomes one `free_completed`. There are
//! no segments, because the log has none of the upstream resource's memory.

use crate::error::{Fault, Problem, wrong};
use crate::options::Limits;
use gapless_formats::csv::Csv;
use gapless_trace::numbers::plural;
use gapless_trace::{Action, Bytes, DeviceAddr, DeviceTrace, Event, Micros, Note, Source, StreamId, Trace};
use rustc_hash::FxHashMap;
use std::io::Read;

pub(crate) fn read(input: &mut (dyn Read + Send), format: String, limits: Limits) -> Result<Trace, Fault> {
    let mut csv = Csv::new(input, limits.bytes)?;
    let need = |names: &[&str]| match csv.column(names) {
        Some(column) => Ok(column),
        None => wrong(csv.line(), format!("the header has no column \"{}\"", names[0])),
    };
    let (action, pointer, size, stream) =
        (need(&["action"])?, need(&["pointer"])?, need(&["size"])?, need(&["stream"])?);
    let time = csv.column(&["time"]);
    let mut device = DeviceTrace::new(0);
    let mut streams: FxHashMap<u64, u16> = FxHashMap::default();
    let mut failures = 0_u64;
    let mut clock = Clock::default();
    while let Some((line, row)) = csv.row()? {
        let pointer = address(&row[pointer], line)?;
        let size = bytes(&row[size], line)?;
        let stream = address(&row[stream], line)?;
        let action = match &*row[action] {
            "allocate" => Action::Alloc,
            "free" | "deallocate" => Action::FreeCompleted,
            "allocate failure" => Action::Oom,
            other => {
                return wrong(
                    line,
                    format!("unknown action {other:?}; allocate, free and allocate failure are known"),
                );
            }
        };
        failures += u64::from(action == Action::Oom);
        if pointer.checked_add(size).is_none() {
            return wrong(line, format!("{size} bytes at {pointer:#x} reach past the last address"));
        }
        if device.events.len() as u64 >= limits.events {
            return wrong(line, format!("more than {} events", limits.events));
        }
        let stream = match streams.get(&stream) {
            Some(&known) => known,
            None => {
                let Some(new) = device.stream_index(StreamId(stream)) else {
                    return wrong(line, "more than 65,535 streams");
                };
                streams.insert(stream, new);
                new
            }
        };
        device.events.push(Event {
            action,
            // A failed request has no place, and RMM does not log the free bytes.
            addr: DeviceAddr(if action == Action::Oom { 0 } else { pointer }),
            size: Bytes(size),
            stream,
            time: Micros(time.map_or(0, |column| clock.read(&row[column]))),
            ..Event::default()
        });
    }
    if device.events.is_empty() {
        return Err(Box::new(Problem::EmptyTrace));
    }
    let mut notes = vec![Note {
        code: "no-segments",
        text:
            "an RMM log has no segments: reserved memory is not known, and a block is as large as its request"
                .into(),
    }];
    if failures > 0 {
        notes.push(Note {
            code: "free-bytes-unknown",
            text: format!(
                "{} failed; RMM does not log how much was free then",
                plural(failures, "allocation")
            ),
        });
    }
    if clock.unread > 0 {
        notes.push(Note {
            code: "times-unread",
            text: format!("{} time(s) could not be read and count as the time before them", clock.unread),
        });
    }
    Ok(Trace {
        source: Source { format, producer: "RMM".into(), torch_rules: false, notes },
        devices: vec![device],
        ..Trace::default()
    })
}

fn address(text: &str, line: u64) -> Result<u64, Fault> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = match digits {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        // "(nil)" is how C prints a null pointer.
        None if text == "(nil)" || text.is_empty() => Some(0),
        None => text.parse().ok(),
    };
    match number {
        Some(number) => Ok(number),
        None => {
            wrong(line, format!("invalid address or handle {text:?}: use a number, such as 0x7f0000000000"))
        }
    }
}

fn bytes(text: &str, line: u64) -> Result<u64, Fault> {
    match text.parse::<u64>() {
        Ok(n) if n <= Bytes::LIMIT.0 => Ok(n),
        Ok(_) => wrong(line, format!("invalid size {text}: a size is at most 2^60 bytes")),
        Err(_) if text.starts_with('-') => {
            wrong(line, format!("invalid size {text}: a size cannot be negative"))
        }
        Err(_) => wrong(line, format!("invalid size {text:?}: use a whole number of bytes")),
    }
}

/// Times of day, `10:21:07:345678` or `10:21:07.345678`, or plain microseconds; past midnight they go on.
#[derive(Debug, Default)]
struct Clock {
    last: u64,
    days: u64,
    unread: u64,
}

impl Clock {
    const DAY: u64 = 86_400_000_000;

    fn read(&mut self, text: &str) -> u64 {
        let Some(time) = Self::of_day(text).or_else(|| text.parse().ok().filter(|&t: &u64| t < 1 << 62))
        else {
            self.unread += 1;
            return self.last;
        };
        let mut now = time.saturating_add(self.days * Self::DAY);
        if now < self.last && self.last - now > Self::DAY / 2 && time < Self::DAY {
            self.days += 1;
            now += Self::DAY;
        }
        // Threads log side by side, so neighbouring lines may go back a little: the order of lines counts.
        self.last = self.last.max(now);
        self.last
    }

    fn of_day(text: &str) -> Option<u64> {
        let mut parts = text.split([':', '.']);
        let mut part = |below: u64| parts.next()?.parse::<u64>().ok().filter(|&n| n < below);
        let (hours, minutes, seconds) = (part(24)?, part(60)?, part(61)?);
        let fraction = parts.next().unwrap_or("0");
        if parts.next().is_some() || fraction.is_empty() || fraction.len() > 9 {
            return None;
        }
        let digits = fraction.len() as u32;
        let value = fraction.parse::<u64>().ok()?;
        let micros =
            if digits <= 6 { value * 10_u64.pow(6 - digits) } else { value / 10_u64.pow(digits - 6) };
        Some(((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_go_on_past_midnight() {
        let mut clock = Clock::default();
        assert_eq!(clock.read("23:59:59:999999"), Clock::DAY - 1);
        assert_eq!(clock.read("00:00:00:000001"), Clock::DAY + 1);
        assert_eq!(clock.read("00:00:00.5"), Clock::DAY + 500_000);
        assert_eq!(clock.read("nonsense"), Clock::DAY + 500_000);
        assert_eq!(clock.unread, 1);
    }
}
