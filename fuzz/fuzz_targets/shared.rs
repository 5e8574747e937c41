//! What all targets do: read, and rebuild the history of what was accepted. The promise is no panic and no runaway
//! memory.

pub fn read(bytes: &[u8]) {
    if let Ok(trace) = gapless_ingest::read(bytes, "fuzz", &gapless_ingest::ReadOptions::default()) {
        for device in &trace.devices {
            let _ = gapless_trace::History::rebuild(&trace, device);
        }
    }
}
