//! Sends UDP datagrams from inside a guest as fast as its kernel takes them, until it is killed.
//!
//! usage: udp-flood ADDRESS:PORT BYTES
#![forbid(unsafe_code)]

use std::env;
use std::net::UdpSocket;

use anyhow::{Context, Result, bail};

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [destination, bytes] = &words[..] else {
        bail!("usage: udp-flood ADDRESS:PORT BYTES");
    };
    let payload = vec![0x5a; bytes.parse().context("the number of bytes")?];
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(destination)?;
    loop {
        socket.send(&payload).context("send a datagram")?;
    }
}
