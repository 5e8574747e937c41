//! Allocations as CSV (RFC 4180): a header, one row an allocation, lines end in CR LF, fields are quoted if needed,
//! and unknown values are empty. Numbers are decimal; times are those of the trace, in microseconds.

use crate::rows::{COLUMNS, pool_names, rows, stack_text};
use crate::{DeviceView, ExportError, View};
use std::io::Write;

/// Writes every allocation of `view`.
///
/// # Errors
/// When writing fails, or when kinds are given but not one for each allocation.
pub fn write(view: &View<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    view.devices.iter().try_for_each(DeviceView::check)?;
    let pools: Vec<(u32, Vec<String>)> =
        view.devices.iter().map(|d| (d.device.device, pool_names(d))).collect();
    let mut line = COLUMNS.join(",");
    let mut stack = String::new();
    let mut buffer = Vec::with_capacity(1 << 16);
    for row in rows(view) {
        end_line(&mut line, &mut buffer);
        for number in [row.device.into(), row.id.into(), row.address, row.requested, row.block] {
            number_field(&mut line, Some(number));
        }
        for event in row.events {
            number_field(&mut line, event.map(u64::from));
        }
        for time in row.times {
            number_field(&mut line, time.map(|t| t.0));
        }
        number_field(&mut line, Some(row.stream));
        let pool = pools
            .iter()
            .find(|(device, _)| *device == row.device)
            .and_then(|(_, names)| names.get(row.pool as usize));
        text_field(&mut line, pool.map_or("", String::as_str));
        text_field(&mut line, row.class.name());
        text_field(&mut line, row.kind.unwrap_or_default());
        number_field(&mut line, row.step.map(u64::from));
        stack_text(view.trace, row.stack, &mut stack);
        text_field(&mut line, &stack);
        line.pop();
        if buffer.len() >= 1 << 16 {
            out.write_all(&buffer)?;
            buffer.clear();
        }
    }
    end_line(&mut line, &mut buffer);
    out.write_all(&buffer)?;
    Ok(out.flush()?)
}

fn end_line(line: &mut String, buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(line.as_bytes());
    buffer.extend_from_slice(b"\r\n");
    line.clear();
}

fn number_field(line: &mut String, number: Option<u64>) {
    use std::fmt::Write;
    if let Some(number) = number {
        // Writing to a string cannot fail.
        let _ = write!(line, "{number}");
    }
    line.push(',');
}

fn text_field(line: &mut String, text: &str) {
    if text.contains(['"', ',', '\r', '\n']) {
        line.push('"');
        line.push_str(&text.replace('"', "\"\""));
        line.push('"');
    } else {
        line.push_str(text);
    }
    line.push(',');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn written(view: &View<'_>) -> String {
        let mut out = Vec::new();
        write(view, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// A reader after RFC 4180, independent of the writer.
    fn parse(text: &str) -> Vec<Vec<String>> {
        let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
        let mut quoted = false;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
                '"' => quoted = !quoted,
                ',' if !quoted => row.push(std::mem::take(&mut field)),
                '\r' if !quoted => {
                    assert_eq!(chars.next(), Some('\n'));
                    row.push(std::mem::take(&mut field));
                    rows.push(std::mem::take(&mut row));
                }
                c => field.push(c),
            }
        }
        assert!(row.is_empty() && field.is_empty(), "the last line ends");
        rows
    }

    #[test]
    fn every_allocation_is_a_row_and_every_row_has_every_column() {
        let sample = Sample::new();
        let rows = parse(&written(&sample.view()));
        assert_eq!(rows[0], COLUMNS);
        let allocations: usize = sample.histories.iter().map(|h| h.allocations.len()).sum();
        assert_eq!(rows.len(), 1 + allocations);
        assert!(rows.iter().all(|row| row.len() == COLUMNS.len()));
    }

    #[test]
    fn fields_hold_what_the_history_says_and_are_empty_where_nothing_is_known() {
        let sample = Sample::new();
        let rows = parse(&written(&sample.view()));
        let base = sample.base.to_string();
        let text = |row: &Vec<String>| row.join("|");
        assert_eq!(
            text(&rows[1]),
            format!(
                "0|0|{base}|1000|1024|1|3|4|1000010|1000030|1000040|0|default|small|weights|0|\
                 a \"quoted\", file.py:7 forward; train.py:1 main\nloop"
            )
        );
        // Freed, and still in use by another stream when the recording ends; not within a step; no stack.
        let last = &rows[3];
        assert_eq!(last[2], (sample.base + (32 << 20)).to_string());
        assert_eq!((last[6].as_str(), last[7].as_str()), ("8", ""), "{last:?}");
        assert_eq!((last[14].as_str(), last[15].as_str(), last[16].as_str()), ("temporary", "", ""));
        // The second device has no clock.
        let no_clock = rows.iter().find(|row| row[0] == "1").unwrap();
        assert_eq!(no_clock[8..11], ["", "", ""]);
        assert_eq!(no_clock[5], "0");
    }

    #[test]
    fn kinds_that_do_not_fit_the_allocations_are_refused() {
        let sample = Sample::new();
        let mut view = sample.view();
        view.devices[0].kinds = Some(&["weights"]);
        let error = write(&view, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, ExportError::Kinds { device: 0, kinds: 1, .. }), "{error}");
    }
}
