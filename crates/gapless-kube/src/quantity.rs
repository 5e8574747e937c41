//! Quantities as Kubernetes writes them: `500m`, `2`, `16Gi`, `1e3`, `128974848`.

/// The quantity in thousandths, rounded up.
pub fn milli(text: &str) -> Result<u64, String> {
    scaled(text, 1000)
}

/// The quantity in whole units, rounded up.
pub fn whole(text: &str) -> Result<u64, String> {
    scaled(text, 1)
}

fn scaled(text: &str, times: u128) -> Result<u64, String> {
    let wrong = || format!("invalid quantity {text:?}: use a number such as 500m, 2 or 16Gi");
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits);
    let (multiply, divide): (u128, u128) = match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let power = suffix
                .strip_prefix(['e', 'E'])
                .and_then(|power| power.parse::<u32>().ok())
                .ok_or_else(wrong)?;
            (10u128.checked_pow(power).filter(|_| power <= 18).ok_or_else(wrong)?, 1)
        }
    };
    let (before, after) = number.split_once('.').unwrap_or((number, ""));
    if (before.is_empty() && after.is_empty()) || before.len() > 20 || after.len() > 9 || after.contains('.')
    {
        return Err(wrong());
    }
    let parse = |text: &str| if text.is_empty() { Ok(0) } else { text.parse::<u128>().map_err(|_| wrong()) };
    let tenth = 10u128.pow(after.len() as u32);
    let mantissa = parse(before)? * tenth + parse(after)?;
    let top = mantissa.checked_mul(multiply).and_then(|value| value.checked_mul(times)).ok_or_else(wrong)?;
    u64::try_from(top.div_ceil(divide * tenth)).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_means_them() {
        for (text, right) in
            [("500m", 500), ("2", 2000), ("0.1", 100), ("1.5k", 1_500_000), ("100n", 1), ("1e2", 100_000)]
        {
            assert_eq!(milli(text), Ok(right), "{text}");
        }
        for (text, right) in [
            ("1Ei", 1 << 60),
            ("2E", 2_000_000_000_000_000_000),
            ("2E0", 2),
            ("16Gi", 16 << 30),
            ("128974848", 128_974_848),
            ("1.5Mi", 3 << 19),
            ("1G", 1_000_000_000),
        ] {
            assert_eq!(whole(text), Ok(right), "{text}");
        }
        for text in [
            "",
            "-1",
            "1x",
            "Gi",
            "1e99",
            "99999999999999999999999",
            "1.2.3",
            "9999999999999999Pi",
            "16Ei",
            "19E",
        ] {
            assert!(whole(text).is_err(), "{text}");
        }
    }
}
