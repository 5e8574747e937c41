//! Round numbers for the axes of pictures.

use crate::text::bytes;

/// A round number of bytes of which about five fit into `most`: 1, 2 or 5 times a power of ten of a binary unit.
pub(crate) fn bytes_step(most: f64) -> u64 {
    let mut unit = 1u64;
    while most / unit as f64 >= 1024.0 && unit < 1 << 50 {
        unit <<= 10;
    }
    let in_unit = decimal_step(most / unit as f64, 6.0);
    ((in_unit * unit as f64) as u64).max(1)
}

/// A round number of which at most about `parts` fit into `most`: 1, 2 or 5 times a power of ten.
pub(crate) fn decimal_step(most: f64, parts: f64) -> f64 {
    let rough = (most / parts).max(1e-9);
    let power = 10f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|t| t * power >= rough).unwrap_or(10.0);
    let step = times * power;
    if most >= 8.0 { step.max(1.0) } else { step }
}

/// Round numbers of bytes, without trailing zeros behind the point.
pub(crate) fn bytes_label(value: u64) -> String {
    if value == 0 {
        return "0".to_owned();
    }
    let text = bytes(value);
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(bytes_step(24.0 * (1u64 << 30) as f64), 5 << 30);
        assert_eq!(bytes_step(9.0 * (1u64 << 30) as f64), 2 << 30);
        assert_eq!(bytes_step(600.0 * (1u64 << 20) as f64), 100 << 20);
        assert_eq!(bytes_step(1.0), 1);
        assert_eq!([bytes_label(0), bytes_label(5 << 30), bytes_label(100 << 20)], ["0", "5 GiB", "100 MiB"]);
        assert!((decimal_step(63_636.0, 8.0) - 10_000.0).abs() < 1e-6);
    }
}
