//! The daemon's own counters, from its /metrics.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

use crate::BenchError;

/// Where the daemon answers; the namespace has nothing else on it.
pub const ADDRESS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9650));

/// What was counted, in the text format.
#[derive(Clone, Debug, Default)]
pub struct Scrape(String);

impl Scrape {
    /// Asks the daemon.
    pub fn take() -> Result<Self, BenchError> {
        let answer = ask().map_err(BenchError::read(format!("http://{ADDRESS}/metrics")))?;
        Ok(Self(answer))
    }

    /// The sum of the series of `name` with `label`, such as `direction="tx"`.
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        let series = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?.strip_prefix('{')?;
            let (labels, value) = rest.rsplit_once("} ")?;
            labels
                .contains(label)
                .then(|| value.trim().parse::<f64>().ok())?
        });
        series.sum()
    }
}

fn ask() -> std::io::Result<String> {
    let limit = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&ADDRESS, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_with_the_label_are_added_and_no_others() {
        let scrape = Scrape(
            "HTTP/1.1 200 OK\r\n\r\n# TYPE tapring_kicks_total counter\n\
             tapring_kicks_total{device=\"t\",direction=\"tx\",queue=\"0\"} 3\n\
             tapring_kicks_total{device=\"t\",direction=\"tx\",queue=\"1\"} 4\n\
             tapring_kicks_total{device=\"t\",direction=\"rx\",queue=\"0\"} 100\n\
             tapring_kicks_total_more{direction=\"tx\"} 1000\n"
                .to_owned(),
        );
        assert!((scrape.sum("tapring_kicks_total", "direction=\"tx\"") - 7.0).abs() < 0.1);
        assert!(scrape.sum("tapring_none", "").abs() < 0.1);
    }
}
