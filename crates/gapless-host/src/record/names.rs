//! Names in the recording: of its file, and of the program.

use crate::sys;
use crate::text::Text;
use std::ffi::CStr;
use std::fmt::Write as _;

/// `run.gtrace`, or `run.PID.gtrace`. A name that is too long is cut, and the kernel then refuses it.
pub(super) fn own_path<'a>(path: &[u8], with_pid: bool, into: &'a mut [u8; 4200]) -> &'a CStr {
    let path = &path[..path.len().min(4096)];
    let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let dot = path[name..].iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0);
    let stem = dot.map_or(path.len(), |at| name + at);
    let mut pid = Text::<16>::default();
    if with_pid {
        let _ = write!(pid, ".{}", sys::pid());
    }
    let mut length = 0;
    for part in [&path[..stem], pid.bytes(), &path[stem..]] {
        into[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    into[length] = 0;
    CStr::from_bytes_until_nul(&into[..=length]).unwrap_or(c"")
}

/// The program's name without its arguments, which may contain secrets; for Python also the script.
pub(super) fn program(buffer: &mut [u8; 1024]) -> Text<512> {
    let line = sys::read_file(c"/proc/self/cmdline", buffer);
    let mut words = line.split(|byte| *byte == 0);
    let mut text = Text::<512>::default();
    let first = base(words.next().unwrap_or_default());
    let _ = text.write_str(first);
    if first.starts_with("python") {
        let script = words.next().unwrap_or_default();
        let shown = match script {
            b"-m" => words.next().unwrap_or_default(),
            other if other.first() == Some(&b'-') => b"",
            other => other,
        };
        if !shown.is_empty() {
            let _ = write!(text, "{}{}", if script == b"-m" { " -m " } else { " " }, base(shown));
        }
    }
    text
}

/// The last part of a path.
fn base(word: &[u8]) -> &str {
    let at = word.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    std::str::from_utf8(&word[at..]).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_puts_its_number_before_the_ending() {
        let mut name = [0; 4200];
        assert_eq!(own_path(b"/a.b/run.gtrace", false, &mut name), c"/a.b/run.gtrace");
        let pid = sys::pid();
        let wanted = format!("/a.b/run.{pid}.gtrace");
        assert_eq!(own_path(b"/a.b/run.gtrace", true, &mut name).to_str(), Ok(wanted.as_str()));
        let wanted = format!("/a.b/run.{pid}");
        assert_eq!(own_path(b"/a.b/run", true, &mut name).to_str(), Ok(wanted.as_str()));
        assert_eq!(own_path(&[b'x'; 9000], false, &mut name).to_bytes().len(), 4096);
    }
}
