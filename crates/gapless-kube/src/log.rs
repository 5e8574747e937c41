//! The log: JSON on standard error, one object a line.

use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes lines, unless the program has silenced it.
#[derive(Debug, Default)]
pub struct Log {
    quiet: AtomicBool,
}

impl Log {
    pub fn silence(&self) {
        self.quiet.store(true, Ordering::Relaxed);
    }

    /// One line with these members.
    pub fn write(&self, level: &str, event: &str, members: Value) {
        if self.quiet.load(Ordering::Relaxed) {
            return;
        }
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut line = json!({"time": since.as_secs_f64(), "level": level, "event": event});
        if let (Value::Object(line), Value::Object(members)) = (&mut line, members) {
            line.extend(members);
        }
        eprintln!("{line}");
    }
}
