//! Settings of PyTorch's allocator, from the environment and from the program.
//!
//! Most of them tune its cache, which Gapless replaces. A fraction of the card is a promise to others on it, and is
//! kept.

use gapless_cuda::locks::Lock;

/// PyTorch's settings when CUDA started, if it could be asked: the program may have set others than the environment.
static SAID: Lock<String> = Lock::new(String::new);

/// Notes the settings with which CUDA starts.
pub fn note(text: String) {
    *SAID.lock() = text;
}

/// The settings of the environment as text. The newer variable takes precedence.
#[must_use]
pub fn text() -> String {
    let said = |name| std::env::var(name).unwrap_or_default();
    let newer = said("PYTORCH_ALLOC_CONF");
    if newer.is_empty() { said("PYTORCH_CUDA_ALLOC_CONF") } else { newer }
}

/// The initial share of each card that the process may hold (`per_process_memory_fraction`).
#[must_use]
pub fn memory_fraction() -> f64 {
    let said = SAID.lock().clone();
    // Settings that the program does not name keep the environment's value.
    fraction_in(&format!("{},{said}", text()))
}

fn fraction_in(text: &str) -> f64 {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let said = text.split(',').filter_map(|pair| pair.strip_prefix("per_process_memory_fraction:"));
    let mut fractions = said.filter_map(|value| value.parse::<f64>().ok());
    // PyTorch itself refuses other values.
    fractions.rfind(|fraction| (0.0..=1.0).contains(fraction)).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::fraction_in;

    #[test]
    fn a_fraction_is_read_wherever_it_stands() {
        assert_eq!(fraction_in(""), 1.0);
        assert_eq!(fraction_in("max_split_size_mb:64"), 1.0);
        assert_eq!(fraction_in("per_process_memory_fraction:0.25"), 0.25);
        assert_eq!(
            fraction_in("roundup_power2_divisions:[256:1,>:4], per_process_memory_fraction : 0.5,a:b"),
            0.5
        );
        assert_eq!(fraction_in("per_process_memory_fraction:0.5,per_process_memory_fraction:0.1"), 0.1);
        assert_eq!(fraction_in("per_process_memory_fraction:7"), 1.0, "PyTorch refuses it");
        assert_eq!(fraction_in("xper_process_memory_fraction:0.5"), 1.0);
    }
}
