//! The page as a file: its size, no text of a trace as markup, and the same bytes for the same input.

mod support {
    pub(crate) mod synthetic;
}

use gapless_page::{Page, PageDevice};
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
    gapless_page::write(&mut out, &page).unwrap();
    (out, history.allocations.len())
}

#[test]
fn an_allocation_costs_at_most_ten_bytes_of_html() {
    // Deflate looks back only 32 KiB, so a longer run costs the same per allocation: a million stay under 10 MB.
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
fn a_page_of_nothing_is_a_page() {
    let trace = gapless_trace::Trace::default();
    let mut out = Vec::new();
    let page = Page { title: "empty", report_json: "{}", trace: &trace, devices: vec![], kind_names: &[] };
    gapless_page::write(&mut out, &page).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
}
