//! Sums over rows, and the memory that PyTorch's reduction kernel takes beside its output.
//!
//! The kernel splits a long reduction over several thread blocks, which leave partial sums in global memory. How many,
//! follows from the shape and from the size of the card (`Reduce.cuh` chooses; its rule is restated here).

use crate::eager::sim::Sim;
use crate::eager::tensor::Tensor;
use crate::model::Dtype;

/// Multiprocessors, and threads that one can hold: of an H100 or H200.
const PROCESSORS: u64 = 132;
const THREADS: u64 = 2048;

/// Bytes of partial sums for `columns` outputs, each over `rows` values that lie `columns` apart; 0 if one block does
/// it all.
#[must_use]
pub fn staging(rows: u64, columns: u64) -> u64 {
    if rows == 0 || columns == 0 {
        return 0;
    }
    let vector = if columns.is_multiple_of(4) {
        4
    } else if columns.is_multiple_of(2) {
        2
    } else {
        1
    };
    let most = 512 / vector;
    let floor_pow2 = |n: u64| if n >= most { most } else { 1 << n.max(1).ilog2() };
    let (across, down) = (floor_pow2(columns / vector), floor_pow2(rows));
    let width = across.min(32);
    let height = down.min(most / width);
    let width = across.min(most / height);
    let mut per_thread = rows;
    if !(per_thread >= height * 16 || per_thread >= 256) {
        return 0;
    }
    per_thread = rows.div_ceil(height);
    let grid = (columns / vector).div_ceil(width);
    let target = PROCESSORS * (THREADS / (width * height));
    if per_thread < 256 || grid > target {
        return 0;
    }
    let blocks = target.div_ceil(grid).min(per_thread.div_ceil(16)).max(per_thread.div_ceil(256));
    if blocks <= 1 { 0 } else { 4 * columns * blocks * width * vector }
}

impl Sim {
    /// The sum over rows of a tensor with `columns` in its last dimension.
    pub(crate) fn sum_rows(&self, t: &Tensor, columns: u64) -> Tensor {
        self.begin("sum");
        let out = self.alloc(columns, t.dtype);
        let bytes = staging(t.n / columns, columns);
        if bytes > 0 {
            let partial = self.alloc(bytes, Dtype::U8);
            self.touch(512);
            drop(partial);
        }
        out
    }

    /// A gradient of `shape` elements from one that was broadcast: the sum over rows, and the right type.
    pub(crate) fn fit_grad(&self, grad: Tensor, columns: u64, dtype: Dtype) -> Tensor {
        let summed = if grad.n == columns { grad } else { self.sum_to(grad, columns) };
        self.cast_grad(summed, dtype)
    }

    fn sum_to(&self, grad: Tensor, n: u64) -> Tensor {
        self.sum_rows(&grad, n)
    }

    pub(crate) fn cast_grad(&self, grad: Tensor, dtype: Dtype) -> Tensor {
        if grad.dtype == dtype {
            return grad;
        }
        self.begin("_to_copy");
        self.alloc(grad.n, dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::staging;

    #[test]
    fn partial_sums_take_what_an_h200_was_seen_to_take() {
        // Rows, columns, bytes: from recorded runs.
        for (rows, columns, bytes) in [
            (1024, 1024, 8_388_608),
            (1024, 768, 6_291_456),
            (1024, 3072, 25_165_824),
            (1024, 8000, 65_536_000),
            (3000, 1024, 24_641_536),
            (3000, 3072, 73_924_608),
            (16384, 128, 16_777_216),
            (4096, 128, 4_194_304),
            (16384, 64, 2_097_152),
            (4096, 64, 524_288),
            (333, 1024, 0),
            (256, 1024, 0),
        ] {
            assert_eq!(staging(rows, columns), bytes, "{rows} x {columns}");
        }
    }
}
