//! The screen: taken, drawn on, and restored when the program ends, by a key, an error, a panic or a signal.

use super::draw::Palette;
use super::state::Ui;
use super::view;
use crate::cli::live::TopArgs;
use crate::machine::collect::collect;
use anyhow::{Context, Result};
use gapless_report::text;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The delay until a signal is noticed.
const ATTENTION: Duration = Duration::from_millis(100);
/// The interval between checks that the terminal still exists.
const ROUND: Duration = Duration::from_millis(500);

pub(super) fn run(args: &TopArgs) -> Result<()> {
    // A first look reports errors before the screen is taken.
    super::look(args)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .context("cannot install the signal handler")?;
    }
    let is_colored = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
    // It also restores the screen if this program panics.
    let terminal =
        ratatui::try_init().context("cannot use the terminal: `gapless top --once` does not need one")?;
    leave_with_terminal(Arc::clone(&ended));
    let result = watch(terminal, args, Palette::new(is_colored), &ended);
    ratatui::try_restore().context("cannot restore the terminal: run `reset`")?;
    result
}

/// Ends the program when its terminal is gone. The main thread would otherwise wait for a key for ever, and would not
/// see a signal either.
fn leave_with_terminal(ended: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut was_ended = false;
        loop {
            std::thread::sleep(ROUND);
            if was_ended || !std::io::stdin().is_terminal() {
                let _ = ratatui::try_restore();
                std::process::exit(i32::from(!was_ended));
            }
            was_ended = ended.load(Ordering::Relaxed);
        }
    });
}

fn watch(mut terminal: DefaultTerminal, args: &TopArgs, palette: Palette, ended: &AtomicBool) -> Result<()> {
    let interval = Duration::from_secs_f64(args.interval);
    let mut ui = Ui { inside: args.pid, ..Ui::default() };
    let mut machine = collect(args.pid)?;
    let mut next = Instant::now() + interval;
    let is_ascii = crate::terminal::is_ascii();
    loop {
        terminal.draw(|frame| {
            view::draw(frame, &machine, &ui, palette);
            if is_ascii {
                in_ascii(frame.buffer_mut());
            }
        })?;
        loop {
            if ended.load(Ordering::Relaxed) {
                return Ok(());
            }
            let now = Instant::now();
            if now >= next {
                next = now + interval;
                if !ui.is_held {
                    machine = collect(args.pid)?;
                    break;
                }
            }
            if event::poll(ATTENTION.min(next.saturating_duration_since(now)))? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        if ui.key(key, &machine) {
                            return Ok(());
                        }
                        break;
                    }
                    Event::Resize(..) => break,
                    _ => {}
                }
            }
        }
    }
}

/// Each cell in ASCII, for a terminal that shows nothing else.
fn in_ascii(screen: &mut Buffer) {
    for cell in &mut screen.content {
        // A cell has room for one character.
        let letter = text::ascii(cell.symbol()).chars().next().unwrap_or(' ');
        cell.set_char(letter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;

    #[test]
    fn a_screen_in_ascii_keeps_its_columns() {
        let mut screen = Buffer::empty(Rect::new(0, 0, 12, 1));
        screen.set_string(0, 0, "▂▇ ±2 · a→b…", ratatui::style::Style::default());
        in_ascii(&mut screen);
        let line: String = screen.content.iter().map(ratatui::buffer::Cell::symbol).collect();
        assert_eq!(line, ":% +2 - a-b~");
    }
}
