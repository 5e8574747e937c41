//! The list: cards as bars, processes as rows. A pure function of the machine and of the user's choices.

use super::NOBODY;
use super::detail;
use super::draw::{self, Palette, bar, bytes, cut, keys, left, percent, rate, right, spark};
use super::hosts;
use super::state::{Sort, Ui, gpus};
use crate::machine::{Gpu, Machine, Process};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

/// Rows with more fragmentation than this are coloured.
const MUCH: f64 = 0.25;

/// Draws all of it.
pub(crate) fn draw(frame: &mut Frame<'_>, machine: &Machine, ui: &Ui, palette: Palette) {
    let area = frame.area();
    let inside = ui.inside.and_then(|pid| machine.processes.iter().find(|process| process.pid == pid));
    match inside {
        Some(process) => detail::draw(frame, area, machine, process, ui, palette),
        None => list(frame, area, machine, ui, palette),
    }
    if ui.is_helping {
        help(frame, area, palette);
    }
}

fn list(frame: &mut Frame<'_>, area: Rect, machine: &Machine, ui: &Ui, palette: Palette) {
    // Cards may take a third of the screen.
    let most = usize::from(area.height / 3).max(1);
    let bars = gpu_lines(machine, area.width, most, palette);
    let [title, cards, _, rows, note, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(bars.len() as u16),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(u16::from(note(machine).is_some())),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(title_line(machine, ui, title.width, palette), title);
    frame.render_widget(Paragraph::new(bars), cards);
    table(frame, rows, machine, ui, palette);
    if let Some(text) = self::note(machine) {
        frame.render_widget(Line::styled(format!(" {text}"), palette.quiet()), note);
    }
    frame.render_widget(key_line(ui, palette), keys);
}

/// One quiet line about missing data.
pub(crate) fn note(machine: &Machine) -> Option<String> {
    match (&machine.no_nvml, machine.notes.as_slice()) {
        (_, [first]) => Some(first.clone()),
        (_, [first, rest @ ..]) => Some(format!("{first} (and {} more)", rest.len())),
        (Some(reason), []) => Some(format!("only processes that use Gapless are shown: {reason}")),
        (None, []) => None,
    }
}

fn title_line(machine: &Machine, ui: &Ui, width: u16, palette: Palette) -> Line<'static> {
    let mut spans = vec![Span::styled(" gapless top", palette.strong())];
    if !machine.host.is_empty() {
        spans.push(Span::raw(format!("  {}", cut(&machine.host, 24))));
    }
    spans.push(Span::styled(format!("  {}", summary(machine)), palette.quiet()));
    if ui.is_held {
        spans.push(Span::styled("  paused", palette.warning()));
    }
    let legend = vec![
        Span::styled(draw::LIVE.to_string(), palette.live()),
        Span::raw(" allocated "),
        Span::styled(draw::RESERVED.to_string(), palette.reserved()),
        Span::raw(" reserved "),
        Span::styled(draw::OTHERS.to_string(), palette.others()),
        Span::raw(" others"),
    ];
    let used: usize = spans.iter().chain(&legend).map(Span::width).sum();
    if let Some(room) = usize::from(width).checked_sub(used).filter(|_| !machine.gpus.is_empty()) {
        spans.push(Span::raw(" ".repeat(room)));
        spans.extend(legend);
    }
    Line::from(spans)
}

pub(crate) fn summary(machine: &Machine) -> String {
    let (all, ours) = (machine.processes.len(), machine.ours());
    match (all, ours) {
        (0, _) => "no process".to_owned(),
        (1, 0) => "1 process, not on Gapless".to_owned(),
        (1, _) => "1 process, on Gapless".to_owned(),
        (all, ours) if all == ours => format!("{all} processes, all on Gapless"),
        (all, ours) => format!("{all} processes, {ours} on Gapless"),
    }
}

fn gpu_lines(machine: &Machine, width: u16, most: usize, palette: Palette) -> Vec<Line<'static>> {
    let shown = if machine.gpus.len() > most { most - 1 } else { machine.gpus.len() };
    let mut lines: Vec<Line<'static>> =
        machine.gpus[..shown].iter().map(|gpu| gpu_line(gpu, usize::from(width), palette)).collect();
    if shown < machine.gpus.len() {
        let more = machine.gpus.len() - shown;
        lines.push(Line::styled(format!("     and {more} more cards"), palette.quiet()));
    }
    lines
}

fn gpu_line(gpu: &Gpu, width: usize, palette: Palette) -> Line<'static> {
    let name = gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name);
    let name = left(name, if width < 100 { 15 } else { 24 });
    let figures = format!("{} of {}", right(&bytes(gpu.used), 8), bytes(gpu.total));
    let room = width.saturating_sub(4 + draw::width_of(&name) + 1 + 1 + 20 + 1);
    let mut spans = vec![
        Span::styled(format!("{:>3} ", gpu.number()), palette.strong()),
        Span::raw(name),
        Span::raw(" "),
    ];
    let beyond = gpu.reserved.saturating_sub(gpu.live);
    spans.extend(bar(room, gpu.total, [gpu.live, beyond, gpu.others], palette));
    spans.push(Span::raw(format!(" {figures}")));
    Line::from(spans)
}

/// A column of the table: its title, its width, true if it holds numbers, its sort order.
type Column = (&'static str, usize, bool, Option<Sort>);

/// The columns that a screen of this width has room for, and that are not empty; the last takes the rest.
fn columns(width: usize, machine: &Machine) -> Vec<Column> {
    let mut columns: Vec<Column> = vec![("PID", 8, true, Some(Sort::Pid))];
    if width >= 100 {
        columns.push(("USER", 9, false, Some(Sort::User)));
    }
    columns.push(("GPU", 5, false, Some(Sort::Gpu)));
    columns.push(("ALLOCATED", 9, true, Some(Sort::Live)));
    columns.push(("RESERVED", 8, true, Some(Sort::Reserved)));
    columns.push(("FRAG", 5, true, Some(Sort::Fragmentation)));
    columns.push(("ALLOC/S", 7, true, Some(Sort::Rate)));
    columns.push(("LAST MINUTES", if width < 100 { 12 } else { 20 }, false, None));
    let has = |of: fn(&Process) -> bool| width >= 110 && machine.processes.iter().any(of);
    if has(|process| process.tenant.is_some()) {
        columns.push(("TENANT", 12, false, None));
    }
    if has(|process| process.limit().is_some()) {
        columns.push(("LIMIT", 8, true, None));
    }
    columns.push(("COMMAND", 0, false, Some(Sort::Command)));
    columns
}

fn table(frame: &mut Frame<'_>, area: Rect, machine: &Machine, ui: &Ui, palette: Palette) {
    let width = usize::from(area.width);
    let columns = columns(width, machine);
    let rows = ui.rows(machine);
    let mut lines = vec![header(&columns, width, ui, palette)];
    if rows.is_empty() {
        let text = if machine.processes.is_empty() && !machine.hosts.is_empty() {
            "no process uses a GPU".to_owned()
        } else if machine.processes.is_empty() {
            NOBODY.to_owned()
        } else {
            format!("nothing fits {:?}: esc shows all", ui.filter)
        };
        lines.extend([Line::default(), Line::styled(format!(" {text}"), palette.quiet())]);
    }
    let room = usize::from(area.height).saturating_sub(1);
    let chosen = ui.position(&rows);
    // The chosen row stays in sight.
    let first = (chosen + 1).saturating_sub(room);
    for (at, process) in rows.iter().enumerate().skip(first).take(room) {
        let line = row(process, machine, &columns, width, palette);
        lines.push(if at == chosen { line.style(palette.chosen()) } else { line });
    }
    // Host memory below, as far as there is room.
    let shown = hosts::text(machine);
    let left = usize::from(area.height).saturating_sub(lines.len());
    lines.extend(shown.lines().take(left).map(|line| Line::raw(format!(" {line}"))));
    if !rows.is_empty()
        && machine.hosts.is_empty()
        && machine.ours() == 0
        && rows.len() + 2 < usize::from(area.height)
    {
        lines.extend([Line::default(), Line::styled(format!(" {NOBODY}"), palette.quiet())]);
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn header(columns: &[Column], width: usize, ui: &Ui, palette: Palette) -> Line<'static> {
    let mut spans = Vec::new();
    let mut used = 0;
    for (title, wide, is_number, sort) in columns {
        let wide = if *wide == 0 { width.saturating_sub(used) } else { *wide };
        used += wide + 1;
        let is_sorted = *sort == Some(ui.sort);
        let text = if *is_number { right(title, wide) } else { left(title, wide) };
        let style = if is_sorted {
            palette.strong().add_modifier(ratatui::style::Modifier::UNDERLINED)
        } else {
            palette.quiet()
        };
        // Only the title is marked, not the space around it.
        let trimmed = text.trim().to_owned();
        let before = text.len() - text.trim_start().len();
        let after = text.len() - before - trimmed.len();
        spans.push(Span::raw(" ".repeat(before)));
        spans.push(Span::styled(trimmed, style));
        spans.push(Span::raw(" ".repeat(after + 1)));
    }
    Line::from(spans)
}

fn row(
    process: &Process,
    machine: &Machine,
    columns: &[Column],
    width: usize,
    palette: Palette,
) -> Line<'static> {
    let is_ours = process.statistics.is_some();
    let silent = process.silent(machine.time);
    let plain = if is_ours && silent.is_none() { Style::new() } else { palette.quiet() };
    let or_dash = |text: String| if is_ours { text } else { "-".to_owned() };
    let mut spans = Vec::new();
    let mut used = 0;
    for (title, wide, is_number, _) in columns {
        let wide = if *wide == 0 { width.saturating_sub(used) } else { *wide };
        used += wide + 1;
        let (text, style) = match *title {
            "PID" => (process.pid.to_string(), plain),
            "USER" => (process.user.clone(), plain),
            "GPU" => (gpus(process, machine), plain),
            "ALLOCATED" => (or_dash(bytes(process.live())), if is_ours { palette.live() } else { plain }),
            "RESERVED" => (held(process), plain),
            "FRAG" => {
                let share = process.fragmentation();
                (or_dash(percent(share)), if is_ours && share >= MUCH { palette.warning() } else { plain })
            }
            "ALLOC/S" => (or_dash(rate(process.rate())), plain),
            "LAST MINUTES" => (history(process, wide, silent), palette.live()),
            "TENANT" => {
                (process.tenant.as_ref().map(|tenant| tenant.name.clone()).unwrap_or_default(), plain)
            }
            "LIMIT" => (process.limit().map(bytes).unwrap_or_default(), plain),
            _ => (draw::command(&process.command), plain),
        };
        let text = if *is_number { right(&text, wide) } else { left(&text, wide) };
        spans.push(Span::styled(text, style));
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

/// Bytes that a process holds; "?" if neither the process nor the driver reports them.
pub(crate) fn held(process: &Process) -> String {
    let is_known = process.statistics.is_some() || process.uses.iter().any(|one| one.used.is_some());
    if is_known { bytes(process.reserved()) } else { "?".to_owned() }
}

fn history(process: &Process, width: usize, silent: Option<u64>) -> String {
    if let Some(since) = silent {
        return cut(&format!("silent {}", draw::duration(since)), width);
    }
    let history = process.history();
    let top = history.iter().map(|(live, reserved)| *live.max(reserved)).max().unwrap_or(0);
    let live: Vec<u64> = history.iter().map(|(live, _)| *live).collect();
    spark(&live, width, top)
}

fn key_line(ui: &Ui, palette: Palette) -> Line<'static> {
    if ui.is_typing {
        return Line::from(vec![
            Span::styled(" filter: ", palette.strong()),
            Span::raw(ui.filter.clone()),
            Span::styled(" ", palette.chosen()),
            Span::styled("   enter keeps it, esc drops it", palette.quiet()),
        ]);
    }
    let mut spans = keys(
        &[
            ("enter", "look inside"),
            ("s", "sort"),
            ("r", "turn"),
            ("/", "filter"),
            ("?", "help"),
            ("q", "quit"),
        ],
        palette,
    );
    if ui.filter.is_empty() {
        spans.push(Span::styled(format!("  by {}", ui.sort.name()), palette.quiet()));
    } else {
        spans.push(Span::styled(format!("  filter: {}", cut(&ui.filter, 20)), palette.warning()));
    }
    Line::from(spans)
}

const HELP: [&str; 17] = [
    "up, down, page up, page down   select a process",
    "enter                          details: pools, streams, holders",
    "left, right                    in details: the next card",
    "esc, q                         back; quit",
    "s, S                           sort by the next column, the previous",
    "r                              reverse the order",
    "/                              filter by command, user, tenant, pid",
    "space                          pause, continue",
    "",
    "allocated      blocks that the program holds",
    "reserved       device memory that the process holds",
    "fragmentation  1 - peak allocated / peak reserved",
    "others         the rest of the card: other allocators, CUDA contexts",
    "silent         the process is alive, but has not updated its",
    "               statistics for this long",
    "",
    "press any key to close",
];

fn help(frame: &mut Frame<'_>, area: Rect, palette: Palette) {
    let (width, height) = (area.width.min(72), area.height.min(HELP.len() as u16 + 2));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    let lines: Vec<Line<'_>> = HELP.iter().map(|text| Line::raw(format!(" {text}"))).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(lines)
            .block(Block::bordered().title(Span::styled(" keys and words ", palette.strong()))),
        place,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::{NOW, machine};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(width: u16, height: u16, machine: &Machine, ui: &Ui) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
        let frame = terminal.draw(|frame| draw(frame, machine, ui, Palette::new(true))).expect("drawn");
        let cell = |x, y| frame.buffer[(x, y)].symbol().to_owned();
        let line = |y| (0..width).map(|x| cell(x, y)).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_list_on_a_small_screen() {
        insta::assert_snapshot!(screen(80, 24, &machine(), &Ui::default()));
    }

    #[test]
    fn the_list_on_a_large_screen() {
        insta::assert_snapshot!(screen(120, 40, &machine(), &Ui { chosen: Some(977), ..Ui::default() }));
    }

    #[test]
    fn a_filter_is_typed_and_kept() {
        let typing = Ui { filter: "note".into(), is_typing: true, ..Ui::default() };
        let kept = Ui { is_typing: false, sort: Sort::Live, ..typing.clone() };
        let nothing = Ui { filter: "zzz".into(), ..Ui::default() };
        let machine = machine();
        let shown = [typing, kept, nothing].map(|ui| screen(80, 12, &machine, &ui)).join("\n\n");
        insta::assert_snapshot!(shown);
    }

    #[test]
    fn inside_a_process() {
        let ui = Ui { inside: Some(4242), ..Ui::default() };
        insta::assert_snapshot!(format!(
            "{}\n\n{}",
            screen(80, 24, &machine(), &ui),
            screen(120, 40, &machine(), &Ui { card: 1, ..ui })
        ));
    }

    #[test]
    fn inside_processes_that_tell_little() {
        let inside = |pid| screen(80, 24, &machine(), &Ui { inside: Some(pid), ..Ui::default() });
        insta::assert_snapshot!(format!("{}\n\n{}", inside(977), inside(31_337)));
    }

    #[test]
    fn nobody_is_there() {
        let mut empty = Machine { time: NOW, host: "node-7".into(), ..Machine::default() };
        empty.no_nvml = Some("libnvidia-ml.so.1 was not found".into());
        let mut strangers = machine();
        strangers.processes.retain(|process| process.statistics.is_none());
        insta::assert_snapshot!(format!(
            "{}\n\n{}",
            screen(80, 12, &empty, &Ui::default()),
            screen(80, 12, &strangers, &Ui::default())
        ));
    }

    #[test]
    fn help_lies_over_it() {
        insta::assert_snapshot!(screen(80, 24, &machine(), &Ui { is_helping: true, ..Ui::default() }));
    }

    #[test]
    fn any_size_of_screen_can_be_drawn() {
        let (machine, empty) = (machine(), Machine::default());
        for (width, height) in [(1, 1), (2, 30), (200, 2), (10, 5), (40, 8), (79, 23), (300, 100)] {
            for inside in [None, Some(4242), Some(31_337)] {
                for is_helping in [false, true] {
                    let ui = Ui { inside, is_helping, ..Ui::default() };
                    screen(width, height, &machine, &ui);
                    screen(width, height, &empty, &ui);
                }
            }
        }
    }

    #[test]
    fn many_cards_and_processes_leave_room_for_each_other() {
        let mut many = machine();
        for index in 2..16 {
            many.gpus.push(Gpu { index, ..many.gpus[1].clone() });
        }
        let template = many.processes[1].clone();
        many.processes = (0..200).map(|pid| Process { pid, ..template.clone() }).collect();
        let text = screen(80, 24, &many, &Ui { chosen: Some(150), ..Ui::default() });
        assert!(text.contains("and 9 more cards"), "{text}");
        assert!(text.contains(" 150 "), "the chosen row is in sight:\n{text}");
    }
}
