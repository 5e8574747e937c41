//! Allocations as Parquet: the columns of the CSV with their types. Texts are dictionaries, numbers packed differences,
//! Snappy on top; what is not known is null. Row groups of 128 Ki rows go out one by one, so memory does not grow with
//! the trace.

use crate::rows::{Row, pool_names, rows, stack_text};
use crate::{DeviceView, ExportError, View};
use gapless_trace::StackId;
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

const SCHEMA: &str = "message allocations {
    required int32 device (INTEGER(32, false));
    required int32 id (INTEGER(32, false));
    required int64 address (INTEGER(64, false));
    required int64 requested (INTEGER(64, false));
    required int64 block (INTEGER(64, false));
    optional int32 start_event (INTEGER(32, false));
    optional int32 freed_event (INTEGER(32, false));
    optional int32 end_event (INTEGER(32, false));
    optional int64 start_time_us (INTEGER(64, false));
    optional int64 freed_time_us (INTEGER(64, false));
    optional int64 end_time_us (INTEGER(64, false));
    required int64 stream (INTEGER(64, false));
    optional binary pool (STRING);
    required binary size_class (STRING);
    optional binary kind (STRING);
    optional int32 step (INTEGER(32, false));
    optional binary stack (STRING);
}";

const TEXTS: [&str; 4] = ["pool", "size_class", "kind", "stack"];
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
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties()))?;
    let mut texts = Texts::new(view);
    let mut all = rows(view);
    let mut group: Vec<Row<'_>> = Vec::new();
    loop {
        group.clear();
        group.extend(all.by_ref().take(row_group));
        if group.is_empty() {
            break;
        }
        let mut columns = writer.next_row_group()?;
        write_group(&group, &mut texts, &mut columns)?;
        columns.close()?;
        writer.flush()?;
        out.write_all(&std::mem::take(writer.inner_mut()))?;
    }
    writer.finish()?;
    out.write_all(writer.inner_mut())?;
    Ok(out.flush()?)
}

fn properties() -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("gapless ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BINARY_PACKED);
    for text in TEXTS {
        let column = ColumnPath::from(text);
        properties = properties
            .set_column_dictionary_enabled(column.clone(), true)
            .set_column_encoding(column, Encoding::PLAIN);
    }
    properties.build()
}

type Group<'a> = SerializedRowGroupWriter<'a, Vec<u8>>;

/// The columns in the order of the schema.
fn write_group(rows: &[Row<'_>], texts: &mut Texts<'_>, group: &mut Group<'_>) -> Result<(), ParquetError> {
    required::<Int32Type>(group, rows.iter().map(|row| row.device.cast_signed()))?;
    required::<Int32Type>(group, rows.iter().map(|row| row.id.cast_signed()))?;
    required::<Int64Type>(group, rows.iter().map(|row| row.address.cast_signed()))?;
    required::<Int64Type>(group, rows.iter().map(|row| row.requested.cast_signed()))?;
    required::<Int64Type>(group, rows.iter().map(|row| row.block.cast_signed()))?;
    for i in 0..3 {
        optional::<Int32Type>(group, rows.iter().map(|row| row.events[i].map(u32::cast_signed)))?;
    }
    for i in 0..3 {
        optional::<Int64Type>(group, rows.iter().map(|row| row.times[i].map(|t| t.0.cast_signed())))?;
    }
    required::<Int64Type>(group, rows.iter().map(|row| row.stream.cast_signed()))?;
    optional::<ByteArrayType>(group, rows.iter().map(|row| texts.pool(row)))?;
    required::<ByteArrayType>(group, rows.iter().map(|row| ByteArray::from(row.class.name())))?;
    optional::<ByteArrayType>(group, rows.iter().map(|row| row.kind.map(ByteArray::from)))?;
    optional::<Int32Type>(group, rows.iter().map(|row| row.step.map(u32::cast_signed)))?;
    optional::<ByteArrayType>(group, rows.iter().map(|row| texts.stack(row.stack)))
}

fn required<T: DataType>(
    group: &mut Group<'_>,
    values: impl Iterator<Item = T::T>,
) -> Result<(), ParquetError> {
    let values: Vec<T::T> = values.collect();
    write_column::<T>(group, &values, None)
}

fn optional<T: DataType>(
    group: &mut Group<'_>,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let mut levels = Vec::new();
    let values: Vec<T::T> =
        values.inspect(|value| levels.push(i16::from(value.is_some()))).flatten().collect();
    write_column::<T>(group, &values, Some(&levels))
}

fn write_column<T: DataType>(
    group: &mut Group<'_>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("the schema has fewer columns than a row".to_owned()))?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

/// Texts made once and shared by all rows that hold them.
struct Texts<'a> {
    view: &'a View<'a>,
    pools: HashMap<(u32, u16), ByteArray>,
    stacks: HashMap<StackId, ByteArray>,
    scratch: String,
}

impl<'a> Texts<'a> {
    fn new(view: &'a View<'a>) -> Texts<'a> {
        let mut pools = HashMap::new();
        for device in &view.devices {
            for (name, i) in pool_names(device).iter().zip(0..) {
                pools.insert((device.device.device, i), ByteArray::from(name.as_str()));
            }
        }
        Texts { view, pools, stacks: HashMap::new(), scratch: String::new() }
    }

    fn pool(&self, row: &Row<'_>) -> Option<ByteArray> {
        self.pools.get(&(row.device, row.pool)).cloned()
    }

    fn stack(&mut self, stack: StackId) -> Option<ByteArray> {
        if stack.is_none() {
            return None;
        }
        let (scratch, trace) = (&mut self.scratch, self.view.trace);
        let text = self.stacks.entry(stack).or_insert_with(|| {
            stack_text(trace, stack, scratch);
            ByteArray::from(scratch.as_str())
        });
        Some(text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::COLUMNS;
    use crate::sample::Sample;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    fn text(field: &Field) -> String {
        match field {
            Field::Null => String::new(),
            Field::Str(text) => text.clone(),
            other => other.to_string(),
        }
    }

    #[test]
    fn the_file_reads_back_as_the_rows_of_the_csv() {
        let sample = Sample::new();
        let view = sample.view();
        let expected: Vec<Row<'_>> = rows(&view).collect();
        for row_group in [1, 7, 1000] {
            let mut out = Vec::new();
            write_groups(&view, row_group, &mut out).unwrap();
            let reader = SerializedFileReader::new(bytes_of(out)).unwrap();
            assert_eq!(reader.num_row_groups(), expected.len().div_ceil(row_group));
            let mut read = 0;
            for (row, expected) in reader.get_row_iter(None).unwrap().zip(&expected) {
                let row = row.unwrap();
                let (names, fields): (Vec<String>, Vec<String>) =
                    row.get_column_iter().map(|(name, field)| (name.clone(), text(field))).unzip();
                assert_eq!(names, COLUMNS);
                let mut stack = String::new();
                stack_text(view.trace, expected.stack, &mut stack);
                let show = |value: Option<u64>| value.map(|v| v.to_string()).unwrap_or_default();
                let mut wanted = vec![
                    expected.device.to_string(),
                    expected.id.to_string(),
                    expected.address.to_string(),
                    expected.requested.to_string(),
                    expected.block.to_string(),
                ];
                wanted.extend(expected.events.map(|e| show(e.map(u64::from))));
                wanted.extend(expected.times.map(|t| show(t.map(|t| t.0))));
                wanted.extend([
                    expected.stream.to_string(),
                    "default".to_owned(),
                    expected.class.name().to_owned(),
                    expected.kind.unwrap_or_default().to_owned(),
                    show(expected.step.map(u64::from)),
                    stack,
                ]);
                assert_eq!(fields, wanted);
                read += 1;
            }
            assert_eq!(read, expected.len());
        }
    }

    #[test]
    fn a_trace_without_allocations_is_a_file_without_rows() {
        let sample = Sample::new();
        let view = View { trace: &sample.trace, devices: Vec::new() };
        let mut out = Vec::new();
        write(&view, &mut out).unwrap();
        let reader = SerializedFileReader::new(bytes_of(out)).unwrap();
        assert_eq!(reader.get_row_iter(None).unwrap().count(), 0);
        assert_eq!(reader.metadata().file_metadata().schema_descr().num_columns(), COLUMNS.len());
    }

    fn bytes_of(out: Vec<u8>) -> bytes::Bytes {
        out.into()
    }
}
