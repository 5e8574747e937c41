//! The other end of torch-bench/driver: starts it, feeds it a program, and reads its answers one by one.

use crate::ops::Op;
use crate::subject::{Block, Entry, FIELDS, PoolStats, Segment, Stats};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

/// Above the bits of the fields in the second word of an answer's set.
const POOLS_CHANGED: u64 = 1 << 63;

/// The answer of the real allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    /// The last address of the allocation; 0 if there is none.
    pub(crate) address: u64,
    pub(crate) stats: Stats,
    /// Figures of private pools that changed.
    pub(crate) pools: PoolStats,
    pub(crate) entries: Vec<Entry>,
    /// After `Op::Snapshot`.
    pub(crate) segments: Option<Vec<Segment>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Done,
    OutOfMemory,
    /// The id held nothing, or this version has no such operation.
    Skipped,
    /// There is no free block at the address that was named.
    Unplaced,
    /// The library refused: its message.
    Refused(String),
}

pub(crate) struct Driver {
    child: Child,
    answers: BufReader<ChildStdout>,
    writer: Option<JoinHandle<io::Result<()>>>,
    stats: Stats,
}

impl Driver {
    /// Starts `path` with the allocator's `settings` and sends it all of `program`.
    pub(crate) fn start(
        path: &Path,
        settings: &str,
        capacity: u64,
        history: bool,
        program: &[Op],
    ) -> io::Result<Driver> {
        let mut command = Command::new(path);
        command.arg(capacity.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if history {
            command.arg("history");
        }
        for name in
            ["PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "LD_PRELOAD"]
        {
            command.env_remove(name);
        }
        command.env("PYTORCH_CUDA_ALLOC_CONF", settings);
        let mut child = command.spawn()?;
        let mut bytes = Vec::with_capacity(program.len() * Op::BYTES);
        program.iter().for_each(|op| op.encode(&mut bytes));
        let mut stdin = child.stdin.take().expect("stdin is piped");
        // A thread of its own: both pipes are finite, and the driver answers while it reads.
        let writer = std::thread::spawn(move || stdin.write_all(&bytes));
        let answers = BufReader::with_capacity(1 << 18, child.stdout.take().expect("stdout is piped"));
        Ok(Driver { child, answers, writer: Some(writer), stats: Stats::ZERO })
    }

    /// The answer to `op`, the next of the program.
    pub(crate) fn answer(&mut self, op: &Op) -> io::Result<Answer> {
        let head: [u64; 4] = self.words()?;
        let (status, count) = (head[0] as u32, (head[0] >> 32) as usize);
        for field in 0..FIELDS {
            if head[2 + field / 64] >> (field % 64) & 1 == 1 {
                self.stats.0[field] = self.word()?;
            }
        }
        let mut pools = PoolStats::new();
        if head[3] & POOLS_CHANGED != 0 {
            for _ in 0..self.word()? {
                let [a, b] = self.words()?;
                pools.insert((a, b), self.words()?);
            }
        }
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let [action, address, size, stream] = self.words()?;
            entries.push(Entry { action, address, size, stream });
        }
        let segments = if *op == Op::Snapshot { Some(self.segments()?) } else { None };
        let status = match status {
            0 => Status::Done,
            1 => Status::OutOfMemory,
            2 => Status::Skipped,
            4 => Status::Unplaced,
            _ => {
                let mut message = vec![0; self.word()? as usize];
                self.answers.read_exact(&mut message)?;
                Status::Refused(String::from_utf8_lossy(&message).into_owned())
            }
        };
        Ok(Answer { status, address: head[1], stats: self.stats, pools, entries, segments })
    }

    fn segments(&mut self) -> io::Result<Vec<Segment>> {
        let count = self.word()?;
        let mut segments = Vec::new();
        for _ in 0..count {
            let [address, total, requested, allocated, active, stream, a, b, flags, blocks] = self.words()?;
            let mut segment = Segment {
                address,
                total,
                requested,
                allocated,
                active,
                stream,
                pool: (a, b),
                large: flags & 1 == 1,
                expandable: flags & 2 == 2,
                blocks: Vec::new(),
            };
            for _ in 0..blocks {
                let [size, requested, flags] = self.words()?;
                let active = flags & 2 == 2;
                let requested = if active { requested } else { 0 };
                segment.blocks.push(Block { size, requested, allocated: flags & 1 == 1, active });
            }
            segments.push(segment);
        }
        Ok(segments)
    }

    fn word(&mut self) -> io::Result<u64> {
        self.words::<1>().map(|[word]| word)
    }

    fn words<const N: usize>(&mut self) -> io::Result<[u64; N]> {
        let mut words = [0; N];
        for word in &mut words {
            let mut bytes = [0; 8];
            self.answers.read_exact(&mut bytes).map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => {
                    io::Error::other("the driver ended before its last answer (its message is above)")
                }
                _ => e,
            })?;
            *word = u64::from_le_bytes(bytes);
        }
        Ok(words)
    }

    /// Waits for the driver's end, after the last answer.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        if let Some(writer) = self.writer.take() {
            writer.join().expect("the writer does not panic")?;
        }
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("the driver ended with {status}")))
        }
    }
}

impl Drop for Driver {
    /// A comparison that stops early leaves no process behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
