//! A DHCP server with one lease, and the TFTP port behind it.
//!
//! RFC 2131 §4.3 with everything optional left out: DISCOVER is answered with an OFFER, REQUEST with an ACK, both broadcast,
//! for a client without an address cannot be reached otherwise. A boot file may be named; that a client then asks for it by
//! TFTP (RFC 1350) shows that the ACK reached it and that it uses the address.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

use crate::process::until;

/// One thing a client asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// A DISCOVER that was answered with an OFFER.
    Offered,
    /// A REQUEST that was answered with an ACK.
    Acknowledged,
    /// A TFTP read request for this file, from the leased address.
    FileAsked(String),
}

/// A server that answers until the test program ends.
#[derive(Debug)]
pub struct DhcpServer {
    seen: Seen,
}

type Seen = Arc<Mutex<Vec<Exchange>>>;

impl DhcpServer {
    /// Serves `lease` on `interface`, whose address is `server`.
    ///
    /// # Errors
    /// When the ports are not to be had.
    pub fn start(
        interface: &str,
        server: Ipv4Addr,
        lease: Ipv4Addr,
        boot_file: &str,
    ) -> Result<Self> {
        let terms = Terms {
            server,
            lease,
            boot_file: boot_file.to_owned(),
        };
        let dhcp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).context("bind the DHCP port")?;
        dhcp.set_broadcast(true)?;
        setsockopt(&dhcp, sockopt::BindToDevice, &interface.into())
            .context("bind to the interface")?;
        let tftp = UdpSocket::bind((server, 69)).context("bind the TFTP port")?;
        let seen = Seen::default();
        let (by_dhcp, by_tftp) = (Arc::clone(&seen), Arc::clone(&seen));
        thread::spawn(move || answer(&dhcp, &terms, &by_dhcp));
        thread::spawn(move || listen_for_files(&tftp, lease, &by_tftp));
        Ok(Self { seen })
    }

    /// Waits until a client has asked this.
    ///
    /// # Errors
    /// When none has by `limit`.
    pub fn wait_for(&self, wanted: &Exchange, limit: Duration) -> Result<()> {
        let asked = until(limit, "a client to ask", || {
            self.seen().contains(wanted).then_some(())
        });
        asked.with_context(|| format!("{wanted:?} is not among {:?}", self.seen()))
    }

    /// All that was asked so far, in order.
    #[must_use]
    pub fn seen(&self) -> Vec<Exchange> {
        lock(&self.seen).clone()
    }
}

fn lock(seen: &Seen) -> MutexGuard<'_, Vec<Exchange>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What every client is told.
#[derive(Debug)]
struct Terms {
    server: Ipv4Addr,
    lease: Ipv4Addr,
    boot_file: String,
}

impl Terms {
    /// The answer to a request: the request itself, turned round.
    fn reply(&self, request: &[u8], kind: u8) -> Vec<u8> {
        let mut reply = request[..OPTIONS_AT].to_vec();
        reply[OPCODE_AT] = BOOT_REPLY;
        reply[YOUR_ADDRESS_AT..][..4].copy_from_slice(&self.lease.octets());
        reply[SERVER_ADDRESS_AT..][..4].copy_from_slice(&self.server.octets());
        reply[BOOT_FILE_AT..][..self.boot_file.len()].copy_from_slice(self.boot_file.as_bytes());
        let server = self.server.octets();
        let options: [(u8, &[u8]); 5] = [
            (MESSAGE_TYPE, &[kind]),
            (SERVER, &server),
            (LEASE_TIME, &[0, 0, 14, 16]),
            (MASK, &[255, 255, 255, 0]),
            (ROUTER, &server),
        ];
        for (code, value) in options {
            reply.extend([code, u8::try_from(value.len()).unwrap_or_default()]);
            reply.extend(value);
        }
        reply.push(END);
        reply
    }
}

fn answer(socket: &UdpSocket, terms: &Terms, seen: &Seen) {
    let mut buffer = [0; 1500];
    while let Ok((bytes, _)) = socket.recv_from(&mut buffer) {
        let request = &buffer[..bytes];
        let (kind, exchange) = match message_type(request) {
            Some(DISCOVER) => (OFFER, Exchange::Offered),
            Some(REQUEST) => (ACK, Exchange::Acknowledged),
            _ => continue,
        };
        if socket
            .send_to(&terms.reply(request, kind), (Ipv4Addr::BROADCAST, 68))
            .is_ok()
        {
            lock(seen).push(exchange);
        }
    }
}

/// The value of option 53, if this is a DHCP request.
fn message_type(request: &[u8]) -> Option<u8> {
    let mut options = request
        .get(OPTIONS_AT - COOKIE.len()..)?
        .strip_prefix(&COOKIE)?;
    loop {
        match options {
            [MESSAGE_TYPE, 1, kind, ..] => return Some(*kind),
            [PAD, rest @ ..] => options = rest,
            [END, ..] => return None,
            [_, length, rest @ ..] => options = rest.get(usize::from(*length)..)?,
            _ => return None,
        }
    }
}

/// A read request is opcode 1, then the name, ended by a zero. It is not answered.
fn listen_for_files(socket: &UdpSocket, lease: Ipv4Addr, seen: &Seen) {
    let mut buffer = [0; 600];
    while let Ok((bytes, from)) = socket.recv_from(&mut buffer) {
        if let (Some(rest), true) = (buffer[..bytes].strip_prefix(&[0, 1]), from.ip() == lease) {
            let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
            lock(seen).push(Exchange::FileAsked(
                String::from_utf8_lossy(name).into_owned(),
            ));
        }
    }
}

// The layout of a message, RFC 2131 §2, and the options used, RFC 2132.
const OPCODE_AT: usize = 0;
const YOUR_ADDRESS_AT: usize = 16;
const SERVER_ADDRESS_AT: usize = 20;
const BOOT_FILE_AT: usize = 108;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const OPTIONS_AT: usize = 240;
const BOOT_REPLY: u8 = 2;
const PAD: u8 = 0;
const MASK: u8 = 1;
const ROUTER: u8 = 3;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
const SERVER: u8 = 54;
const END: u8 = 255;
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(options: &[u8]) -> Vec<u8> {
        [&[0; OPTIONS_AT - COOKIE.len()][..], &COOKIE, options].concat()
    }

    #[test]
    fn the_message_type_is_found_behind_other_options() {
        assert_eq!(
            message_type(&message(&[
                PAD,
                12,
                2,
                53,
                1,
                MESSAGE_TYPE,
                1,
                REQUEST,
                END
            ])),
            Some(REQUEST)
        );
    }

    #[test]
    fn noise_has_no_message_type() {
        assert_eq!(message_type(&[0; 12]), None);
        assert_eq!(message_type(&message(&[END, MESSAGE_TYPE, 1, ACK])), None);
        assert_eq!(message_type(&message(&[12, 200, 1])), None);
    }

    #[test]
    fn an_offer_carries_the_lease_and_is_itself_well_formed() {
        let terms = Terms {
            server: Ipv4Addr::new(10, 77, 0, 1),
            lease: Ipv4Addr::new(10, 77, 0, 2),
            boot_file: "boot".to_owned(),
        };
        let offer = terms.reply(&message(&[MESSAGE_TYPE, 1, DISCOVER, END]), OFFER);
        assert_eq!(message_type(&offer), Some(OFFER));
        assert_eq!(offer[YOUR_ADDRESS_AT..][..4], [10, 77, 0, 2]);
    }
}
