//! The other end of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tapring_queue::Policy;
use thiserror::Error;

use crate::policy::PolicyChange;

use super::protocol::{Answer, Request};

/// Why there is no answer, or not the one that was wanted.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens, or not any more.
    #[error("control socket {}: {source}: start `tapring serve` with this --control-socket, as the same user", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// No daemon of this version.
    #[error("control socket {}: an answer that means nothing: {what}: is it a tapring of another version?", path.display())]
    Strange {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The daemon said no, and its policy is as it was.
    #[error("{0}")]
    Refused(String),
}

/// The policy that a daemon has in force.
pub fn policy(socket: &Path) -> Result<Policy, ClientError> {
    ask(socket, Request::Policy)
}

/// Changes some settings, all or none, and returns the policy when every worker has it in force.
pub fn set_policy(socket: &Path, change: &PolicyChange) -> Result<Policy, ClientError> {
    ask(socket, Request::SetPolicy(*change))
}

fn ask(socket: &Path, request: Request) -> Result<Policy, ClientError> {
    let line = exchange(socket, request).map_err(|source| ClientError::Unreachable {
        path: socket.to_owned(),
        source,
    })?;
    match serde_json::from_str(&line) {
        // What a daemon does not tell, it does not have: it is as without that setting.
        Ok(Answer::Policy(policy)) => Ok(policy.applied_to(Policy::DEFAULT)),
        Ok(Answer::Error(error)) => Err(ClientError::Refused(error)),
        Err(error) => Err(ClientError::Strange {
            path: socket.to_owned(),
            what: error.to_string(),
        }),
    }
}

fn exchange(socket: &Path, request: Request) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut line = serde_json::to_vec(&request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST_ANSWER)).read_line(&mut answer)?;
    match answer.ends_with('\n') {
        true => Ok(answer),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Workers answer in microseconds; a daemon whose workers do not run may still take a change later.
const LIMIT: Duration = Duration::from_secs(10);

const LONGEST_ANSWER: u64 = 65536;
