//! DPDK's testpmd with a virtio-user port: a frontend that polls, floods, and never sleeps.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::process::Process;

/// What testpmd says at its end that its port did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCounts {
    /// Frames taken from the receiveq.
    pub received: u64,
    /// Frames put into the transmitq.
    pub sent: u64,
}

/// A testpmd that forwards.
#[derive(Debug)]
pub struct TestPmd(Process);

impl TestPmd {
    /// Starts it in a forwarding mode (`txonly`, `rxonly`) and waits until it forwards.
    ///
    /// # Errors
    /// When it does not within 30 s.
    pub fn start(socket: &Path, mode: &str) -> Result<Self> {
        let port = format!(
            "net_virtio_user0,path={},queues=1,queue_size=256",
            socket.display()
        );
        let prefix = format!("--file-prefix=tapring-{}-{mode}", std::process::id());
        // Line by line, for it does not flush what it prints into a pipe.
        let mut command = Command::new("stdbuf");
        command.args([
            "--output=L",
            "dpdk-testpmd",
            "-l",
            "0,1",
            "--no-huge",
            "-m",
            "256",
            "--no-pci",
            "--no-telemetry",
            &prefix,
            "--vdev",
            &port,
        ]);
        // By default it makes a pool for the cores and ports there might be, which does not fit 256 MiB.
        command.args([
            "--",
            &format!("--forward-mode={mode}"),
            "--total-num-mbufs=16384",
        ]);
        let process = Process::start("dpdk-testpmd", &command)?;
        process.wait_line("Press enter to exit", Duration::from_secs(30))?;
        Ok(Self(process))
    }

    /// Ends the forwarding and reads what it counted.
    ///
    /// # Errors
    /// When it does not end in order within 30 s.
    pub fn stop(mut self) -> Result<PortCounts> {
        self.0.say("\n")?;
        let finished = self.0.finish(Duration::from_secs(30))?;
        ensure!(
            finished.status.success(),
            "dpdk-testpmd: {}\n{}",
            finished.status,
            finished.lines.join("\n")
        );
        let totals = finished
            .lines
            .iter()
            .skip_while(|line| !line.contains("Accumulated forward statistics"));
        let text = totals.cloned().collect::<Vec<_>>().join("\n");
        Ok(PortCounts {
            received: number_after(&text, "RX-packets:")?,
            sent: number_after(&text, "TX-packets:")?,
        })
    }
}

fn number_after(text: &str, label: &str) -> Result<u64> {
    let rest = text
        .split_once(label)
        .with_context(|| format!("testpmd printed no {label}\n{text}"))?
        .1;
    let number = rest.split_whitespace().next().unwrap_or_default();
    number.parse().with_context(|| format!("{label} {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_totals_are_read() {
        let text = "  RX-packets: 7              RX-dropped: 0             RX-total: 7\n  TX-packets: 1234           TX-dropped: 5";
        assert_eq!(number_after(text, "RX-packets:").unwrap(), 7);
        assert_eq!(number_after(text, "TX-packets:").unwrap(), 1234);
        assert!(number_after(text, "bogus:").is_err());
    }
}
