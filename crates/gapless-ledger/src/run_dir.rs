//! The folder for what processes of one user share: `/dev/shm/gapless-<uid>`, or what `GAPLESS_RUN_DIR` names. It is the user's own and nobody
//! else may enter it; anything else in its place is refused.

use std::fmt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why there is no such folder.
#[derive(Debug)]
pub enum RunDirError {
    /// Whose it would be is not known.
    NoUser,
    /// Something else is there: what.
    Refused(PathBuf, &'static str),
    Io(PathBuf, std::io::Error),
}

impl fmt::Display for RunDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunDirError::NoUser => f.write_str("/proc/self/status does not say which user this is"),
            RunDirError::Refused(path, what) => write!(
                f,
                "{} {what}: remove it, or name another folder by GAPLESS_RUN_DIR, the same for all processes that share a card",
                path.display()
            ),
            RunDirError::Io(path, error) => write!(f, "{} cannot be made: {error}", path.display()),
        }
    }
}

impl std::error::Error for RunDirError {}

/// The folder, made where it is not there.
///
/// # Errors
/// When it cannot be made, or what is there is not this user's alone.
pub fn open() -> Result<PathBuf, RunDirError> {
    let user = user().ok_or(RunDirError::NoUser)?;
    match std::env::var_os("GAPLESS_RUN_DIR").filter(|named| !named.is_empty()) {
        Some(named) => own(Path::new(&named), user),
        None => {
            let memory = Path::new("/dev/shm");
            let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
            own(&root.join(format!("gapless-{user}")), user)
        }
    }
}

/// The effective user, as the kernel prints it.
fn user() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Makes `path` a folder that only `user` can enter, or sees that it is one.
fn own(path: &Path, user: u32) -> Result<PathBuf, RunDirError> {
    let failed = |error| RunDirError::Io(path.to_owned(), error);
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    let refused = |what| Err(RunDirError::Refused(path.to_owned(), what));
    if !found.is_dir() {
        return refused("is no folder, or a link to one");
    }
    if found.uid() != user {
        return refused("belongs to another user");
    }
    if found.permissions().mode() & 0o077 != 0 {
        return refused("can be entered by others (chmod 700 makes it private)");
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("gapless-run-dir-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a folder");
        path
    }

    #[test]
    fn the_folder_is_made_private_and_found_again() {
        let root = scratch("made");
        let user = user().expect("a user");
        let path = own(&root.join("run"), user).expect("it is made");
        assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o700);
        assert_eq!(own(&path, user).expect("it is found"), path);
        std::fs::remove_dir_all(root).expect("removed");
    }

    #[test]
    fn what_is_not_a_private_folder_of_this_user_is_refused() {
        let root = scratch("refused");
        let user = user().expect("a user");
        let refused = |path: &Path, user: u32, part: &str| {
            let text = own(path, user).expect_err(part).to_string();
            assert!(text.contains(part) && text.contains("GAPLESS_RUN_DIR"), "{text}");
        };
        std::os::unix::fs::symlink(&root, root.join("link")).expect("a link");
        refused(&root.join("link"), user, "a link");
        std::fs::write(root.join("file"), "").expect("a file");
        refused(&root.join("file"), user, "no folder");
        std::fs::create_dir(root.join("open")).expect("a folder");
        std::fs::set_permissions(root.join("open"), PermissionsExt::from_mode(0o770)).expect("a mode");
        refused(&root.join("open"), user, "by others");
        own(&root.join("mine"), user).expect("it is made");
        refused(&root.join("mine"), user + 1, "another user");
        assert!(matches!(own(&root.join("none/run"), user), Err(RunDirError::Io(..))));
        std::fs::remove_dir_all(root).expect("removed");
    }
}
