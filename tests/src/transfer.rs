//! TCP peers on the host's side, and what both sides compare.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

/// SHA-256 in hexadecimal, as `sha256sum` prints it on either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest(String);

impl Digest {
    /// The digest of these bytes.
    ///
    /// # Errors
    /// When there is no `sha256sum`.
    pub fn of(bytes: &[u8]) -> Result<Self> {
        let mut child = Command::new("sha256sum")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        child
            .stdin
            .take()
            .context("stdin is a pipe")?
            .write_all(bytes)?;
        let said = child.wait_with_output()?;
        ensure!(said.status.success(), "sha256sum: {}", said.status);
        Self::parse(&String::from_utf8(said.stdout)?)
    }

    /// What `sha256sum` printed.
    ///
    /// # Errors
    /// When it is no digest.
    pub fn parse(line: &str) -> Result<Self> {
        let word = line.split_whitespace().next().unwrap_or_default();
        ensure!(
            word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "not a digest: {line}"
        );
        Ok(Self(word.to_owned()))
    }
}

/// So many bytes that no cable ever carried before.
///
/// # Errors
/// When the kernel has none.
pub fn random_bytes(count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Takes one connection after another and keeps what each sent.
#[derive(Debug)]
pub struct Sink(Receiver<Vec<u8>>);

impl Sink {
    /// Listens there.
    ///
    /// # Errors
    /// When the address is not to be had.
    pub fn listen(address: SocketAddr) -> Result<Self> {
        let listener =
            TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
        let (done, results) = channel();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut bytes = Vec::new();
                // A broken connection shows as bytes that are too few.
                let _ = stream.read_to_end(&mut bytes);
                if done.send(bytes).is_err() {
                    return;
                }
            }
        });
        Ok(Self(results))
    }

    /// What the next connection sent.
    ///
    /// # Errors
    /// When none ended within ten seconds.
    pub fn take(&self) -> Result<Vec<u8>> {
        self.0
            .recv_timeout(Duration::from_secs(10))
            .map_err(|_| anyhow!("nobody sent anything"))
    }
}

/// Sends the same bytes to everyone who connects.
#[derive(Debug)]
pub struct Source;

impl Source {
    /// Listens there.
    ///
    /// # Errors
    /// When the address is not to be had.
    pub fn listen(address: SocketAddr, bytes: Vec<u8>) -> Result<()> {
        let listener =
            TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                // A broken connection shows on the other side.
                let _ = stream.write_all(&bytes);
            }
        });
        Ok(())
    }
}
