//! Runs as a page: one file without scripts, light and dark, that works from `file://`.

use super::{Named, Simulated, counted, fragmented, grouped, refusals};
use crate::sim::Run;
use std::fmt::Write;

/// The most nodes of the heat map.
const MOST_NODES: usize = 4_000;
/// Colours of lines, in the order of policies; from Okabe and Ito's palette, which colour-blind people tell apart.
const COLOURS: [&str; 7] = ["#999999", "#56b4e9", "#cc79a7", "#e69f00", "#009e73", "#d55e00", "#0072b2"];
const SHADES: usize = 10;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1c2430;--dim:#5b6675;--line:#d5dbe3;--back:#fff;--card:#f5f7fa;--ours:#0072b2;--cool:#0b4f8a;--empty:#e9eef4}
@media(prefers-color-scheme:dark){:root{--ink:#e7ecf2;--dim:#9aa7b6;--line:#313b48;--back:#12171e;--card:#1a212b;--ours:#f0e442;--cool:#7fc4ff;--empty:#222b36}}
body{margin:2rem auto;padding:0 1.25rem;max-width:74rem;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.25rem 0;color:var(--dim)}
.tiles{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.25rem 0}.tile{background:var(--card);border-radius:.5rem;padding:.6rem 1rem;min-width:8rem}
.tile b{display:block;font-size:1.45rem;font-variant-numeric:tabular-nums}.tile span{color:var(--dim)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.25rem .9rem .25rem 0;text-align:right;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}th{color:var(--dim);font-weight:500}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(24rem,1fr));gap:1.5rem}svg{width:100%;height:auto;display:block}
svg text{fill:var(--dim);font:11px system-ui,sans-serif}.grid{stroke:var(--line);fill:none}.curve{fill:none;stroke-width:1.8}.ours{stroke:var(--ours);stroke-width:2.6}
.bar{fill:var(--cool)}.empty{fill:var(--empty)}.node{fill:transparent}.node:hover{fill:none;stroke:var(--ink)}
.key{display:flex;flex-wrap:wrap;gap:.4rem 1.1rem;margin:.4rem 0}.key i{display:inline-block;width:1.1rem;height:.25rem;vertical-align:middle;margin-right:.35rem}
summary{cursor:pointer;color:var(--dim)}
";

/// The page.
pub fn page(simulated: &Simulated) -> String {
    let mut out = String::new();
    let gpus: u64 = simulated.nodes.iter().map(|node| u64::from(node.gpus)).sum();
    let Some(main) = simulated.runs.last() else { return out };
    let run = &main.run;
    let _ = write!(
        out,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>Gapless fleet: {}</title><style>{STYLE}",
        main.policy
    );
    // Shades of the heat map: more of the colour, more in use.
    for shade in 1..=SHADES {
        let part = if shade == SHADES { 100 } else { 8 + shade * 62 / SHADES };
        let _ = write!(out, ".s{shade}{{fill:color-mix(in srgb,var(--cool) {part}%,var(--empty))}}");
    }
    let _ = write!(
        out,
        "</style><h1>{:.2} % of the GPUs allocated</h1><p>policy {} · {} with {} · {}, {:.2} % \
         of the GPUs · seed {}</p>",
        run.share(),
        main.policy,
        counted(simulated.nodes.len() as u64, "node"),
        counted(gpus, "GPU"),
        counted(run.outcomes.len() as u64, "arrival"),
        run.arrived_share(),
        simulated.seed
    );
    out.push_str("<div class=tiles>");
    let failed = run.outcomes.len() - run.placed();
    for (name, value) in [
        ("GPUs allocated", format!("{:.1}", run.allocated_milli as f64 / 1000.0)),
        ("fragmented", format!("{:.2} %", fragmented(run))),
        ("pods placed", grouped(run.placed() as u64)),
        ("pods refused", grouped(failed as u64)),
        ("moves", grouped(run.moves.len() as u64)),
        ("decisions a second", grouped(run.decisions_per_second() as u64)),
    ] {
        let _ = write!(out, "<div class=tile><b>{value}</b><span>{name}</span></div>");
    }
    out.push_str("</div>");
    if simulated.runs.len() > 1 {
        table(&mut out, &simulated.runs);
    }
    out.push_str("<div class=charts><section><h2>Allocated over arrivals</h2>");
    chart(&mut out, &simulated.runs, |point| point.allocated, "GPUs allocated, per cent");
    out.push_str("</section><section><h2>Fragmentation over arrivals</h2>");
    chart(
        &mut out,
        &simulated.runs,
        |point| point.fragmented,
        "free but of no use to a typical pod, per cent of GPUs",
    );
    out.push_str("</section></div>");
    key(&mut out, &simulated.runs);
    out.push_str("<h2>Refused, and why</h2>");
    reasons(&mut out, run);
    let _ = write!(out, "<h2>The cluster at the end: {}</h2>", main.policy);
    heat(&mut out, simulated, run);
    for named in simulated.runs.iter().rev().skip(1) {
        let _ =
            write!(out, "<details><summary>{}: {:.2} % allocated</summary>", named.policy, named.run.share());
        reasons(&mut out, &named.run);
        heat(&mut out, simulated, &named.run);
        out.push_str("</details>");
    }
    out.push_str("</html>\n");
    out
}

fn table(out: &mut String, runs: &[Named]) {
    out.push_str(
        "<table><tr><th>policy<th>allocated<th>fragmented<th>placed<th>refused<th>decisions a second</tr>",
    );
    for named in runs {
        let run = &named.run;
        let _ = write!(
            out,
            "<tr><td>{}<td>{:.2} %<td>{:.2} %<td>{}<td>{}<td>{}</tr>",
            named.policy,
            run.share(),
            fragmented(run),
            grouped(run.placed() as u64),
            grouped((run.outcomes.len() - run.placed()) as u64),
            grouped(run.decisions_per_second() as u64)
        );
    }
    out.push_str("</table>");
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 40.0;
const BOTTOM: f64 = 30.0;

fn chart(out: &mut String, runs: &[Named], value: impl Fn(&crate::sim::Point) -> f64, label: &str) {
    let points = || runs.iter().flat_map(|named| &named.run.curve);
    let right = points().map(|point| point.arrived).fold(1.0, f64::max);
    let top = points().map(&value).fold(1.0, f64::max);
    let step =
        [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].into_iter().find(|step| top / step <= 6.0).unwrap_or(top);
    let top = (top / step).ceil() * step;
    let x = |arrived: f64| LEFT + arrived / right * (WIDTH - LEFT - 10.0);
    let y = |share: f64| HEIGHT - BOTTOM - share / top * (HEIGHT - BOTTOM - 10.0);
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img aria-label=\"{label} over arrived demand\">"
    );
    let mut tick = 0.0;
    while tick <= top + 1e-9 {
        let at = y(tick);
        let _ = write!(out, "<path class=grid d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - 10.0);
        let _ = write!(out, "<text x={:.1} y={:.1} text-anchor=end>{tick}</text>", LEFT - 6.0, at + 4.0);
        tick += step;
    }
    let across = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0];
    let across = across.into_iter().find(|step| right / step <= 8.0).unwrap_or(right);
    let mut tick = 0.0;
    while tick <= right + 1e-9 {
        let _ = write!(
            out,
            "<text x={:.1} y={:.1} text-anchor=middle>{tick} %</text>",
            x(tick),
            HEIGHT - BOTTOM + 15.0
        );
        tick += across;
    }
    for (at, named) in runs.iter().enumerate() {
        let mut path = String::new();
        for point in &named.run.curve {
            let sign = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{sign}{:.1} {:.1}", x(point.arrived), y(value(point)));
        }
        let class = if named.policy == "gapless" { "curve ours" } else { "curve" };
        let colour = if named.policy == "gapless" { "" } else { colour(at, runs.len()) };
        let stroke = if colour.is_empty() { String::new() } else { format!(" stroke=\"{colour}\"") };
        let _ = write!(
            out,
            "<path class=\"{class}\"{stroke} d=\"{path}\"><title>{}</title></path>",
            named.policy
        );
    }
    let _ = write!(
        out,
        "<text x={LEFT} y={:.1}>demand that has arrived, in per cent of the GPUs</text></svg>",
        HEIGHT - 2.0
    );
}

fn colour(at: usize, runs: usize) -> &'static str {
    COLOURS[(at + COLOURS.len() - runs.min(COLOURS.len())) % COLOURS.len()]
}

fn key(out: &mut String, runs: &[Named]) {
    out.push_str("<div class=key>");
    for (at, named) in runs.iter().enumerate() {
        let colour = if named.policy == "gapless" { "var(--ours)" } else { colour(at, runs.len()) };
        let _ = write!(out, "<span><i style=\"background:{colour}\"></i>{}</span>", named.policy);
    }
    out.push_str("</div>");
}

fn reasons(out: &mut String, run: &Run) {
    let refused = refusals(run);
    if refused.is_empty() {
        out.push_str("<p>No pod was refused.</p>");
        return;
    }
    let most = refused.iter().map(|(_, count)| *count).max().unwrap_or(1);
    let height = refused.len() * 26;
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 720 {height}\" style=\"max-width:45rem\" role=img aria-label=\"refused pods by cause\">"
    );
    for (row, (cause, count)) in refused.iter().enumerate() {
        let y = row * 26;
        let width = (300.0 * *count as f64 / most as f64).max(1.0);
        let _ = write!(out, "<rect class=bar x=330 y={} width={width:.1} height=16 rx=2 />", y + 4);
        let _ = write!(out, "<text x=322 y={} text-anchor=end>{}</text>", y + 16, cause.words());
        let _ = write!(out, "<text x={:.1} y={}>{}</text>", 336.0 + width, y + 16, grouped(*count as u64));
    }
    out.push_str("</svg>");
}

/// One square for each GPU, nodes side by side, those with the same model together.
fn heat(out: &mut String, simulated: &Simulated, run: &Run) {
    let mut order: Vec<usize> =
        (0..simulated.nodes.len()).filter(|&node| simulated.nodes[node].gpus > 0).collect();
    order.sort_by(|&a, &b| {
        let key = |node: usize| (&simulated.nodes[node].model, std::cmp::Reverse(simulated.nodes[node].gpus));
        key(a).cmp(&key(b)).then_with(|| simulated.nodes[a].name.cmp(&simulated.nodes[b].name))
    });
    let shown = order.len().min(MOST_NODES);
    if shown < order.len() {
        let _ = write!(
            out,
            "<p>The first {} of {} nodes with GPUs.</p>",
            grouped(shown as u64),
            grouped(order.len() as u64)
        );
    }
    out.push_str("<p>A square is a GPU, a column of squares a node; the stronger its colour, the more is allocated.</p>");
    const CELL: usize = 7;
    const ACROSS: usize = 140;
    let mut squares = vec![String::new(); SHADES + 1];
    let mut nodes = String::new();
    let (mut x, mut y, mut tallest) = (0, 0, 0);
    let mut model: Option<&str> = None;
    let mut titles = String::new();
    for &node in &order[..shown] {
        let this = &simulated.nodes[node];
        let tall = this.gpus as usize;
        if model != Some(this.model.as_str()) {
            if model.is_some() {
                y += tallest * CELL + 8;
            }
            let _ = write!(titles, "<text x=0 y={}>{}</text>", y + 12, escaped(&this.model));
            y += 18;
            (x, tallest) = (0, 0);
            model = Some(&this.model);
        } else if x >= ACROSS {
            y += tallest * CELL + 4;
            (x, tallest) = (0, 0);
        }
        for (gpu, &free) in run.free[node].iter().enumerate() {
            let used = 1000 - usize::from(free);
            // A full GPU gets its own shade, so that it differs from one that is almost full.
            let shade = if used == 1000 { SHADES } else { (used * (SHADES - 1)).div_ceil(1000) };
            let _ = write!(squares[shade], "M{} {}h6v6h-6z", x * CELL, y + gpu * CELL);
        }
        let used: u32 = run.free[node].iter().map(|&free| 1000 - u32::from(free)).sum();
        let _ = write!(
            nodes,
            "<rect class=node x={} y={y} width=6 height={}><title>{}: {:.2} of {} GPUs allocated, {:.1} of {:.1} CPUs \
             free</title></rect>",
            x * CELL,
            tall * CELL - 1,
            escaped(&this.name),
            f64::from(used) / 1000.0,
            this.gpus,
            run.free_cpu[node] as f64 / 1000.0,
            this.cpu_milli as f64 / 1000.0
        );
        tallest = tallest.max(tall);
        x += 1;
    }
    let height = y + tallest * CELL;
    let width = ACROSS * CELL;
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {width} {height}\" role=img aria-label=\"allocated share of every GPU\">{titles}"
    );
    for (shade, path) in squares.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        let class = if shade == 0 { "empty".to_owned() } else { format!("s{shade}") };
        let _ = write!(out, "<path class={class} d=\"{path}\"/>");
    }
    let _ = write!(out, "{nodes}</svg>");
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
