//! One reading of `/metrics`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// The body of one scrape.
#[derive(Clone, Debug)]
pub struct Scrape(String);

impl Scrape {
    /// Asks for `/metrics` as Prometheus does.
    ///
    /// # Errors
    /// When the answer is not 200 or does not come within five seconds.
    pub fn of(address: SocketAddr) -> Result<Self> {
        let limit = Duration::from_secs(5);
        let mut stream = TcpStream::connect_timeout(&address, limit)
            .with_context(|| format!("connect to {address}"))?;
        stream.set_read_timeout(Some(limit))?;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .context("read the metrics")?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .context("an HTTP answer has a head and a body")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "/metrics answered {head}");
        Ok(Self(body.to_owned()))
    }

    /// The sum of all series of a metric that have these labels, each written as in the exposition (`direction="tx"`).
    ///
    /// # Errors
    /// When there is no such series: a counter exists from the start, so a missing one is a wrong name.
    pub fn sum(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let values: Vec<f64> = self
            .series(name, labels)
            .filter_map(|(_, value)| value.parse().ok())
            .collect();
        ensure!(
            !values.is_empty(),
            "no series {name} with {labels:?} in\n{}",
            self.0
        );
        Ok(values.iter().sum())
    }

    /// The series of a metric that have these labels and are not zero, for an error message.
    #[must_use]
    pub fn non_zero(&self, name: &str) -> Vec<String> {
        let found = self
            .series(name, &[])
            .filter(|(_, value)| value.parse() != Ok(0.0));
        found
            .map(|(series, value)| format!("{series} {value}"))
            .collect()
    }

    fn series<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [&'a str],
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let rows = self
            .0
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '));
        rows.filter(move |(series, _)| {
            series.split('{').next() == Some(name)
                && labels.iter().all(|label| series.contains(label))
        })
    }
}
