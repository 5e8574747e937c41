//! Follows all objects of one kind: lists them, then follows their changes, and lists again if the server has
//! forgotten the version that was reached (410).

use crate::api::{self, Api, ApiError};
use crate::limits::WATCHED_FOR;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Receives objects and their changes.
pub trait Listener {
    /// Takes all objects. Known objects that are not among them are gone.
    fn replace(&self, objects: &[Value]);
    fn changed(&self, object: &Value);
    fn deleted(&self, object: &Value);
    /// All changes up to this version were reported.
    fn reached(&self, version: &str);
    /// A call failed and will be repeated.
    fn trouble(&self, what: &str);
}

/// The state of a watch, for metrics and readiness.
#[derive(Debug, Default)]
pub struct Progress {
    pub listed: AtomicBool,
    pub lists: AtomicU64,
    pub troubles: AtomicU64,
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// Objects in one answer of a list.
const PAGE: usize = 500;

/// Follows the collection at `path` until `stop` is set.
pub fn follow(api: &Api, path: &str, listener: &dyn Listener, progress: &Progress, stop: &AtomicBool) {
    let mut pause = FIRST_PAUSE;
    while !stop.load(Ordering::Relaxed) {
        let trouble = |error: &ApiError| {
            progress.troubles.fetch_add(1, Ordering::Relaxed);
            listener.trouble(&format!("{path}: {error}"));
        };
        let mut version = match list(api, path) {
            Ok((objects, version)) => {
                listener.replace(&objects);
                listener.reached(&version);
                progress.listed.store(true, Ordering::Release);
                progress.lists.fetch_add(1, Ordering::Relaxed);
                version
            }
            Err(error) => {
                trouble(&error);
                std::thread::sleep(pause);
                pause = (pause * 2).min(LAST_PAUSE);
                continue;
            }
        };
        let mut failures = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut is_gone = false;
            let mut seen = false;
            let from = format!(
                "{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCHED_FOR}&resourceVersion={version}"
            );
            let result = api.watch(&from, |event| {
                let object = &event["object"];
                match event["type"].as_str() {
                    Some("ADDED" | "MODIFIED") => listener.changed(object),
                    Some("DELETED") => listener.deleted(object),
                    Some("BOOKMARK") => {}
                    _ => {
                        is_gone = true;
                        return false;
                    }
                }
                seen = true;
                // Without a version the last one stays. If it is too old, the server answers 410.
                if let Some(new) = object["metadata"]["resourceVersion"].as_str() {
                    new.clone_into(&mut version);
                    listener.reached(&version);
                }
                !stop.load(Ordering::Relaxed)
            });
            if seen {
                (failures, pause) = (0, FIRST_PAUSE);
            }
            match result {
                Ok(()) if is_gone => break,
                Ok(()) => {}
                Err(error) => {
                    trouble(&error);
                    failures += 1;
                    if error.status() == Some(410) || failures >= 5 {
                        break;
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
            // The pause keeps this from a tight loop if the server ends every watch at once.
            if !seen {
                std::thread::sleep(FIRST_PAUSE / 5);
            }
        }
    }
}

/// All objects, and the version at which they were listed.
fn list(api: &Api, path: &str) -> Result<(Vec<Value>, String), ApiError> {
    let mut objects = Vec::new();
    let mut next = String::new();
    loop {
        let more = if next.is_empty() { String::new() } else { format!("&continue={next}") };
        let mut page = api.get(&format!("{path}?limit={PAGE}{more}"))?;
        objects.extend(api::items(&mut page)?);
        page["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut next);
        if next.is_empty() {
            return Ok((objects, page["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned()));
        }
    }
}
