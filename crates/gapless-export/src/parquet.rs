//! Allocations as Parquet: the columns of the CSV with their types. Texts are dictionaries, numbers packed
//! differences, compressed with Snappy; unknown values are null. Row groups of 128 Ki rows are written one by one, so
//! memory does not grow with the trace.

use crate::rows::{Row, pool_names, rows, stack_text};
use crate::{DeviceView, ExportError, View};
use file::{Column, Kind, Values, Writer};
use gapless_trace::StackId;
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

mod encode;
mod file;
mod thrift;

const fn required(name: &'static str, kind: Kind) -> Column {
    Column { name, kind, is_optional: false }
}

const fn optional(name: &'static str, kind: Kind) -> Column {
    Column { name, kind, is_optional: true }
}

const COLUMNS: &[Column] = &[
    required("device", Kind::U32),
    required("id", Kind::U32),
    required("address", Kind::U64),
    required("requested", Kind::U64),
    required("block", Kind::U64),
    optional("start_event", Kind::U32),
    optional("freed_event", Kind::U32),
    optional("end_event", Kind::U32),
    optional("start_time_us", Kind::U64),
    optional("freed_time_us", Kind::U64),
    optional("end_time_us", Kind::U64),
    required("stream", Kind::U64),
    optional("pool", Kind::Text),
    required("size_class", Kind::Text),
    optional("kind", Kind::Text),
    optional("step", Kind::U32),
    optional("stack", Kind::Text),
];

const ROW_GROUP: usize = 1 << 17;

/// Writes every allocation of `view`.
///
/// # Errors
/// When writing fails, or kinds are given and not one for each allocation.
pub fn write(view: &View<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    write_groups(view, ROW_GROUP, out)
}

fn write_groups(view: &View<'_>, row_group: usize, out: &mut dyn Write) -> Result<(), ExportError> {
    view.devices.iter().try_for_each(DeviceView::check)?;
    let mut writer = Writer::new(COLUMNS, out)?;
    let mut texts = Texts::new(view);
    let mut all = rows(view);
    let mut group: Vec<Row<'_>> = Vec::new();
    loop {
        group.clear();
        group.extend(all.by_ref().take(row_group));
        if group.is_empty() {
            return writer.finish();
        }
        writer.group(group.len(), columns(&group, &mut texts))?;
    }
}

/// The values in the order of [`COLUMNS`].
fn columns(rows: &[Row<'_>], texts: &mut Texts<'_>) -> Vec<Values> {
    let all = |value: fn(&Row<'_>) -> u64| Values::Numbers(rows.iter().map(|row| Some(value(row))).collect());
    let some = |value: &dyn Fn(&Row<'_>) -> Option<u64>| Values::Numbers(rows.iter().map(value).collect());
    let event = |i: usize| some(&move |row: &Row<'_>| row.events[i].map(u64::from));
    let time = |i: usize| some(&move |row: &Row<'_>| row.times[i].map(|time| time.0));
    let class = |row: &Row<'_>| Some(Arc::from(row.class.name()));
    vec![
        all(|row| row.device.into()),
        all(|row| row.id.into()),
        all(|row| row.address),
        all(|row| row.requested),
        all(|row| row.block),
        event(0),
        event(1),
        event(2),
        time(0),
        time(1),
        time(2),
        all(|row| row.stream),
        Values::Texts(rows.iter().map(|row| texts.pool(row)).collect()),
        Values::Texts(rows.iter().map(class).collect()),
        Values::Texts(rows.iter().map(|row| row.kind.map(Arc::from)).collect()),
        some(&|row: &Row<'_>| row.step.map(u64::from)),
        Values::Texts(rows.iter().map(|row| texts.stack(row.stack)).collect()),
    ]
}

/// Texts that are made once and shared by all rows with them.
struct Texts<'a> {
    view: &'a View<'a>,
    pools: HashMap<(u32, u16), Arc<str>>,
    stacks: HashMap<StackId, Arc<str>>,
    scratch: String,
}

impl<'a> Texts<'a> {
    fn new(view: &'a View<'a>) -> Texts<'a> {
        let mut pools = HashMap::new();
        for device in &view.devices {
            for (name, i) in pool_names(device).iter().zip(0..) {
                pools.insert((device.device.device, i), Arc::from(name.as_str()));
            }
        }
        Texts { view, pools, stacks: HashMap::new(), scratch: String::new() }
    }

    fn pool(&self, row: &Row<'_>) -> Option<Arc<str>> {
        self.pools.get(&(row.device, row.pool)).cloned()
    }

    fn stack(&mut self, stack: StackId) -> Option<Arc<str>> {
        if stack.is_none() {
            return None;
        }
        let (scratch, trace) = (&mut self.scratch, self.view.trace);
        let text = self.stacks.entry(stack).or_insert_with(|| {
            stack_text(trace, stack, scratch);
            Arc::from(scratch.as_str())
        });
        Some(Arc::clone(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;
    use crate::sample::Sample;

    #[test]
    fn columns_are_those_of_the_csv() {
        assert_eq!(COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>(), rows::COLUMNS);
    }

    /// Checks a file without a reader; python/tests/test_parquet.py reads every value with pyarrow.
    #[test]
    fn a_file_begins_and_ends_as_parquet_and_its_footer_is_inside() {
        let sample = Sample::new();
        let empty = View { trace: &sample.trace, devices: Vec::new() };
        for (view, row_group) in [(sample.view(), 1), (sample.view(), 7), (sample.view(), 1000), (empty, 7)] {
            let mut out = Vec::new();
            write_groups(&view, row_group, &mut out).unwrap();
            assert_eq!((&out[..4], &out[out.len() - 4..]), (&b"PAR1"[..], &b"PAR1"[..]));
            let length = out[out.len() - 8..out.len() - 4].try_into().map(u32::from_le_bytes).unwrap();
            assert!(length > 0 && (length as usize) < out.len() - 8, "{length} of {}", out.len());
        }
    }
}
