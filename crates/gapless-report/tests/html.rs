//! The page as a file: what it weighs, that nothing of a trace escapes into markup, that the same input gives the same
//! bytes.

mod support {
    pub(crate) mod synthetic;
}

use gapless_report::html::{self, Page, PageDevice, layout};
use gapless_trace::History;
use support::synthetic::{self, KINDS};

fn page(run: &synthetic::Run, title: &str, json: &str) -> (Vec<u8>, usize) {
    let device = &run.trace.devices[0];
    let history = History::rebuild(&run.trace, device).unwrap();
    let mut out = Vec::new();
    let page = Page {
        title,
        report_json: json,
        trace: &run.trace,
        devices: vec![PageDevice {
            device,
            history: &history,
            kinds: &run.kinds,
            steps: &run.steps,
            places: None,
        }],
        kind_names: &KINDS,
    };
    html::write(&mut out, &page).unwrap();
    (out, history.allocations.len())
}

#[test]
fn an_allocation_costs_at_most_ten_bytes_of_html() {
    // Deflate looks back 32 KiB and no further, so a longer run costs the same per allocation: a million stay under 10
    // MB.
    let run = synthetic::run(60_000, "odd");
    let (out, allocations) = page(&run, "run", "{}");
    let small = page(&synthetic::run(1, "odd"), "run", "{}").0.len();
    let each = (out.len() - small) as f64 / allocations as f64;
    assert!(each <= 9.9, "{each} bytes an allocation");
    assert_eq!(run.kinds.len(), allocations, "the made-up run names a kind for each allocation");
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    let run = synthetic::run(3_000, "odd");
    assert_eq!(page(&run, "run", "{}").0, page(&run, "run", "{}").0);
}

#[test]
fn names_that_are_markup_stay_text() {
    let evil = "</script><img src=x onerror=alert(1)><!--";
    let run = synthetic::run(500, evil);
    let json = format!("{{\"source\":{{\"path\":\"{evil}\"}}}}");
    let (out, _) = page(&run, evil, &json);
    let text = String::from_utf8(out).unwrap();
    assert!(!text.contains("<img"), "an element of the trace's making");
    // Each script that opens closes, and no more: the report, the code, the tables and two sections of the device.
    assert_eq!(text.matches("<script").count(), 5);
    assert_eq!(text.matches("</script>").count(), 5);
    assert_eq!(text.matches("&lt;/script&gt;&lt;img").count(), 2, "the title, in its two places");
    assert!(text.contains("\\u003c/script>\\u003cimg"), "the report's JSON");
}

#[test]
fn the_page_asks_for_nothing_from_outside() {
    let (out, _) = page(&synthetic::run(10, "odd"), "run", "{}");
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("default-src 'none'"));
    for wanted in ["https://", "src=\"http", "@import", "url("] {
        assert!(!text.contains(wanted), "{wanted}");
    }
}

#[test]
fn no_two_rectangles_overlap_and_the_stack_is_hardly_higher_than_the_peak() {
    let ratio = checked_height(&synthetic::run(12_000, "odd"));
    assert!(ratio < 1.12, "{ratio}");
}

/// Lifetimes at random fall into parts that are hardly smaller than the whole. Looking for parts of parts must end.
#[test]
fn lifetimes_at_random_are_packed_too() {
    let ratio = checked_height(&synthetic::random_lifetimes(60_000));
    assert!(ratio < 1.4, "{ratio}");
}

/// How many times as high as the peak the packed picture is; checks that no two rectangles overlap.
fn checked_height(run: &synthetic::Run) -> f64 {
    let history = History::rebuild(&run.trace, &run.trace.devices[0]).unwrap();
    let placed = layout::place(&history.allocations, history.forever().0);
    // Sweep over time, keeping what is alive by its lower edge: a newcomer must fit between its neighbours.
    let mut changes: Vec<(u32, bool, usize)> = Vec::new();
    for (i, a) in history.allocations.iter().enumerate() {
        changes.push((a.start.0, true, i));
        changes.push((a.end.0, false, i));
    }
    // Ends before births at the same tick: lifetimes are half-open.
    changes.sort_unstable();
    let blocks: Vec<u64> = history.allocations.iter().map(|a| a.block.0).collect();
    let mut alive = std::collections::BTreeMap::new();
    for (tick, born, i) in changes {
        let y = placed.y[i];
        if !born {
            assert_eq!(alive.remove(&y), Some(i));
            continue;
        }
        if let Some((&below, &other)) = alive.range(..=y).next_back() {
            assert!(below + blocks[other] <= y, "{i} overlaps {other} below it at tick {tick}");
        }
        if let Some((&above, &other)) = alive.range(y..).next() {
            assert!(y + blocks[i] <= above, "{i} overlaps {other} above it at tick {tick}");
        }
        alive.insert(y, i);
    }
    placed.height as f64 / history.usage.active.peak.0 as f64
}

#[test]
fn a_page_of_nothing_is_a_page() {
    let trace = gapless_trace::Trace::default();
    let mut out = Vec::new();
    let page = Page { title: "empty", report_json: "{}", trace: &trace, devices: vec![], kind_names: &[] };
    html::write(&mut out, &page).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
}
