//! A child process whose output is kept, whose waits are bounded, and which does not outlive its test.

use std::io::{BufRead, BufReader, PipeReader, Write, pipe};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Looks every few milliseconds until `look` finds something; an error that says what was waited for after `limit`.
///
/// # Errors
/// When the limit has passed.
pub fn until<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            bail!("waited {limit:?} in vain for {what}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// How a process ended and all that it printed.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// Stdout and stderr, line by line.
    pub lines: Vec<String>,
    /// From its start to its end.
    pub took: Duration,
}

/// The lines printed so far, and whether more can come.
#[derive(Debug, Default)]
struct Log {
    state: Mutex<(Vec<String>, bool)>,
    grown: Condvar,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, (Vec<String>, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, output: PipeReader) {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let text = String::from_utf8_lossy(&line)
                .trim_end_matches('\r')
                .to_owned();
            self.lock().0.push(text);
            self.grown.notify_all();
        }
        self.lock().1 = true;
        self.grown.notify_all();
    }

    fn wait<T>(
        &self,
        limit: Duration,
        look: impl Fn(&(Vec<String>, bool)) -> Option<T>,
    ) -> Option<T> {
        let waiting = |state: &mut (Vec<String>, bool)| look(state).is_none() && !state.1;
        let (state, _) = self
            .grown
            .wait_timeout_while(self.lock(), limit, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        look(&state)
    }
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: Arc<Log>,
    begun: Instant,
}

impl Process {
    /// Starts `program` with stdin a pipe and stdout and stderr kept together in order.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(name: &str, program: &Command) -> Result<Self> {
        let (output, printed) = pipe()?;
        let child = dies_with_us(program)
            .stdin(Stdio::piped())
            .stdout(printed.try_clone()?)
            .stderr(printed)
            .spawn()
            .with_context(|| format!("start {name}: {program:?}"))?;
        let log = Arc::new(Log::default());
        let filled = Arc::clone(&log);
        thread::spawn(move || filled.fill(output));
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
            begun: Instant::now(),
        })
    }

    /// Runs `program` to its end.
    ///
    /// # Errors
    /// When it cannot be started or is not done by `limit`.
    pub fn run(name: &str, program: &Command, limit: Duration) -> Result<Finished> {
        Self::start(name, program)?.finish(limit)
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// All lines printed so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.log.lock().0.clone()
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Waits for a line with `part` in it.
    ///
    /// # Errors
    /// When the output ends or the limit passes without one.
    pub fn wait_line(&self, part: &str, limit: Duration) -> Result<String> {
        let found = self.log.wait(limit, |(lines, _)| {
            lines.iter().find(|line| line.contains(part)).cloned()
        });
        found.with_context(|| {
            format!(
                "{} printed no line with {part:?} in {limit:?}:\n{}",
                self.name,
                self.tail()
            )
        })
    }

    /// Writes to its stdin.
    ///
    /// # Errors
    /// When it has closed it.
    pub fn say(&mut self, text: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("stdin is a pipe")?;
        input
            .write_all(text.as_bytes())
            .with_context(|| format!("write to {}", self.name))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When there is nobody to send it to.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.id())?;
        kill(Pid::from_raw(id), signal).with_context(|| format!("send {signal} to {}", self.name))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it is still running at `limit`; it is killed then.
    pub fn finish(mut self, limit: Duration) -> Result<Finished> {
        let ended = until(limit, "its end", || self.child.try_wait().transpose());
        let status = ended
            .with_context(|| format!("{} is still running:\n{}", self.name, self.tail()))??;
        let took = self.begun.elapsed();
        self.log
            .wait(Duration::from_secs(2), |(_, closed)| closed.then_some(()));
        Ok(Finished {
            status,
            lines: self.lines(),
            took,
        })
    }

    /// The last lines, for an error message.
    #[must_use]
    pub fn tail(&self) -> String {
        let lines = self.lines();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same command under `setpriv --pdeathsig`, so that a test that is killed leaves nothing running. The process id stays
/// that of the command, which setpriv becomes.
fn dies_with_us(program: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program.get_program())
        .args(program.get_args());
    for (key, value) in program.get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    if let Some(folder) = program.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}
