//! Inside one process: its figures on one card, the last minutes as an area, pools and streams, the largest holders.

use super::draw::{self, Palette, area as area_of, bytes, count, cut, duration, keys, left, rate, right};
use super::state::{Ui, gpus};
use crate::machine::{Machine, Process};
use gapless_stats::Card;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    machine: &Machine,
    process: &Process,
    ui: &Ui,
    palette: Palette,
) {
    let one = process.uses.get(ui.card).or(process.uses.first());
    let card = one.and_then(|one| one.card.as_ref());
    let width = usize::from(area.width);
    let mut head = title(machine, process, ui, width, palette);
    match card {
        Some(card) => head.extend(figures(card, one.and_then(|one| one.used), palette)),
        None => head.extend(driver_only(process, palette)),
    }
    let tables = card.map_or(0, |card| {
        let lanes = card.lanes.len() + if card.regions.is_empty() { 0 } else { card.regions.len() + 2 };
        lanes.max(card.holders.len()) as u16 + 2
    });
    let [top, chart, below, bottom] = Layout::vertical([
        Constraint::Length(head.len() as u16 + 1),
        Constraint::Min(if card.is_some() { 6 } else { 0 }),
        Constraint::Max(tables.max(4)),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head), top);
    if let Some(card) = card {
        frame.render_widget(Paragraph::new(minutes(card, chart, palette)), chart);
        let [lanes, holders] =
            Layout::horizontal([Constraint::Length((area.width / 2).min(46)), Constraint::Fill(1)])
                .areas(below);
        let rows = (card.regions.len() as u16 + 2).min(lanes.height / 2);
        let rows = if card.regions.is_empty() { 0 } else { rows };
        let [lanes, regions] = Layout::vertical([Constraint::Fill(1), Constraint::Length(rows)]).areas(lanes);
        frame.render_widget(Paragraph::new(lane_lines(card, lanes, palette)), lanes);
        frame.render_widget(Paragraph::new(region_lines(card, regions, palette)), regions);
        frame.render_widget(Paragraph::new(holder_lines(card, holders, palette)), holders);
    }
    let mut hints = keys(&[("esc", "back")], palette);
    if process.uses.len() > 1 {
        hints.extend(keys(&[("left, right", "another card")], palette));
    }
    hints.extend(keys(&[("space", "hold"), ("?", "help")], palette));
    frame.render_widget(Line::from(hints), bottom);
}

fn title(
    machine: &Machine,
    process: &Process,
    ui: &Ui,
    width: usize,
    palette: Palette,
) -> Vec<Line<'static>> {
    let mut facts = Vec::new();
    if !process.user.is_empty() {
        facts.push(process.user.clone());
    }
    if let Some(tenant) = &process.tenant {
        facts.push(format!("tenant {}", tenant.name));
    }
    if let Some(limit) = process.limit() {
        facts.push(format!("limit {}", bytes(limit)));
    }
    let gpu = process.uses.get(ui.card).or(process.uses.first()).and_then(|one| machine.gpus.get(one.gpu));
    if let Some(gpu) = gpu {
        let name = gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name);
        let of =
            if process.uses.len() > 1 { format!(" of {}", gpus(process, machine)) } else { String::new() };
        facts.push(format!("GPU {}{of} {name}", gpu.number()));
    }
    if let Some(statistics) = &process.statistics {
        facts.push(format!("for {}", duration(machine.time.saturating_sub(statistics.began))));
        facts.push(statistics.program.clone());
    }
    let mut lines = vec![
        Line::from(vec![
            Span::styled(format!(" {} ", process.pid), palette.strong()),
            Span::styled(cut(&draw::command(&process.command), width.saturating_sub(12)), palette.strong()),
        ]),
        Line::styled(format!(" {}", cut(&facts.join(", "), width.saturating_sub(2))), palette.quiet()),
    ];
    if let Some(since) = process.silent(machine.time) {
        let text = format!(" silent for {}: stopped, or another program by now", duration(since));
        lines.push(Line::styled(text, palette.warning()));
    }
    if ui.is_held {
        lines.push(Line::styled(" paused", palette.warning()));
    }
    lines.push(Line::default());
    lines
}

fn figures(card: &Card, used: Option<u64>, palette: Palette) -> Vec<Line<'static>> {
    let figure = |name: &'static str, value: String, more: String| {
        vec![
            Span::styled(format!(" {name:<10}"), palette.quiet()),
            Span::styled(right(&value, 9), palette.strong()),
            Span::raw(left(&format!("  {more}"), 19)),
        ]
    };
    let pair = |one: Vec<Span<'static>>, other: Vec<Span<'static>>| Line::from([one, other].concat());
    let counters = &card.counters;
    let used = used.map_or_else(|| "?".to_owned(), bytes);
    vec![
        pair(
            figure("allocated", bytes(card.live), format!("peak {}", bytes(card.peak_live))),
            figure("blocks", count(card.blocks), format!("{} stranded", bytes(card.stranded))),
        ),
        pair(
            figure("reserved", bytes(card.reserved), format!("peak {}", bytes(card.peak_reserved))),
            figure(
                "requests",
                count(counters.allocations),
                format!("{} a second", rate(card.allocations_per_second())),
            ),
        ),
        pair(
            figure("on card", used, "by the driver".to_owned()),
            figure("failed", count(counters.ooms), format!("{} tried again", count(counters.retries))),
        ),
        pair(
            figure("frag", format!("{:.1} %", card.fragmentation() * 100.0), "by the peaks".to_owned()),
            figure(
                "driver",
                format!("{:.2} s", counters.driver_ns as f64 / 1e9),
                format!("{} maps", count(counters.maps)),
            ),
        ),
        pair(
            figure("pages", count(counters.creates), format!("{} used again", count(counters.harvested))),
            figure("waits", count(counters.host_waits), "of the host".to_owned()),
        ),
    ]
}

fn driver_only(process: &Process, palette: Palette) -> Vec<Line<'static>> {
    let used: Option<u64> = process.uses.iter().filter_map(|one| one.used).reduce(u64::saturating_add);
    vec![
        Line::raw(format!(
            " on card  {}",
            used.map_or_else(|| "? (the driver does not say)".to_owned(), bytes)
        )),
        Line::default(),
        Line::styled(
            " It does not use Gapless, or runs as another user: what is inside is not known.",
            palette.quiet(),
        ),
    ]
}

fn minutes(card: &Card, place: Rect, palette: Palette) -> Vec<Line<'static>> {
    let (width, height) = (usize::from(place.width), usize::from(place.height));
    let samples: Vec<(u64, u64)> = card.samples.iter().map(|sample| (sample.live, sample.reserved)).collect();
    let top = samples.iter().map(|(live, reserved)| *live.max(reserved)).max().unwrap_or(0).max(1);
    let (axis, rows) = (10, height.saturating_sub(2));
    if rows == 0 || width < axis + 8 || samples.is_empty() {
        return vec![Line::styled(" no samples yet", palette.quiet())];
    }
    let mut lines = area_of(&samples, (width - axis - 1, rows), top, palette);
    for (at, line) in lines.iter_mut().enumerate() {
        let label = match at {
            0 => bytes(top),
            at if at + 1 == rows => "0".to_owned(),
            at if rows >= 5 && at == rows / 2 => bytes(top / 2),
            _ => String::new(),
        };
        line.spans.insert(0, Span::styled(format!("{} ", right(&label, axis - 1)), palette.quiet()));
    }
    let span = match (card.samples.first(), card.samples.last()) {
        (Some(first), Some(last)) => duration(last.time.saturating_sub(first.time)),
        _ => String::new(),
    };
    let legend = vec![
        Span::styled(left(&format!("{} {span} ago", " ".repeat(axis - 1)), axis + 14), palette.quiet()),
        Span::styled(draw::LIVE.to_string(), palette.live()),
        Span::styled(" allocated  ", palette.quiet()),
        Span::styled(draw::RESERVED.to_string(), palette.reserved()),
        Span::styled(" reserved", palette.quiet()),
    ];
    let used: usize = legend.iter().map(Span::width).sum();
    let mut legend = Line::from(legend);
    if width > used + 5 {
        legend.push_span(Span::styled(right("now", width - used - 1), palette.quiet()));
    }
    lines.push(legend);
    lines
}

fn lane_lines(card: &Card, place: Rect, palette: Palette) -> Vec<Line<'static>> {
    let room = usize::from(place.height);
    let mut lines = vec![Line::styled(
        format!(
            " {} {} {} {}",
            left("POOL", 7),
            left("STREAM", 11),
            right("ALLOCATED", 9),
            right("RESERVED", 8)
        ),
        palette.quiet(),
    )];
    for lane in &card.lanes {
        let pool = if lane.pool == (0, 0) {
            "default".to_owned()
        } else {
            format!("{}.{}", lane.pool.0, lane.pool.1)
        };
        let stream = if lane.stream == 0 { "default".to_owned() } else { format!("{:#x}", lane.stream) };
        let figures = format!("{} {}", right(&bytes(lane.live), 9), right(&bytes(lane.reserved), 8));
        lines.push(Line::raw(format!(" {} {} {figures}", left(&pool, 7), left(&stream, 11))));
    }
    shorten(lines, room, card.more_lanes as usize, palette)
}

/// Regions, with their bytes on the card and asleep.
fn region_lines(card: &Card, place: Rect, palette: Palette) -> Vec<Line<'static>> {
    let room = usize::from(place.height).saturating_sub(1);
    let mut lines = vec![Line::styled(
        format!(
            " {} {} {} {}",
            left("REGION", 15),
            right("ON CARD", 8),
            right("ASLEEP", 8),
            right("HOST", 8)
        ),
        palette.quiet(),
    )];
    for region in &card.regions {
        let figures =
            [region.held, region.asleep, region.host].map(|count| right(&bytes(count), 8)).join(" ");
        lines.push(Line::raw(format!(" {} {figures}", left(&region.name, 15))));
    }
    shorten(lines, room, 0, palette)
}

fn holder_lines(card: &Card, place: Rect, palette: Palette) -> Vec<Line<'static>> {
    let (room, width) = (usize::from(place.height), usize::from(place.width));
    let mut lines = vec![Line::styled(
        format!("{} {} {}", right("LARGEST", 9), right("BLOCKS", 7), "HELD BY"),
        palette.quiet(),
    )];
    for holder in &card.holders {
        let what = cut(&holder.what, width.saturating_sub(19));
        lines.push(Line::raw(format!(
            "{} {} {what}",
            right(&bytes(holder.bytes), 9),
            right(&count(holder.blocks), 7)
        )));
    }
    shorten(lines, room, 0, palette)
}

/// Cuts the list and counts the lines that do not fit.
fn shorten(mut lines: Vec<Line<'static>>, room: usize, more: usize, palette: Palette) -> Vec<Line<'static>> {
    let is_cut = lines.len() > room;
    let left_out = if is_cut { lines.len() - room.saturating_sub(1) } else { 0 } + more;
    if is_cut {
        lines.truncate(room.saturating_sub(1));
    }
    if left_out > 0 && lines.len() < room {
        lines.push(Line::styled(format!(" and {left_out} more"), palette.quiet()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_stats::Region;

    #[test]
    fn regions_with_what_of_them_sleeps() {
        let region = |name: &str, held, asleep| Region {
            name: name.to_owned(),
            held,
            asleep,
            host: asleep,
            ..Region::default()
        };
        let card = Card {
            regions: vec![region("rollout", 0, 12 << 30), region("trainer/weights", 7 << 30, 0)],
            ..Card::default()
        };
        let lines = region_lines(&card, Rect::new(0, 0, 46, 4), Palette::new(false));
        let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                " REGION           ON CARD   ASLEEP     HOST",
                " rollout              0 B 12.0 GiB 12.0 GiB",
                " trainer/weights 7.00 GiB      0 B      0 B",
            ]
        );
    }
}
