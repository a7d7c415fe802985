//! What a client asks for.

/// The longest request head that is read; what is longer is refused.
pub(super) const MAX_HEAD_BYTES: usize = 8192;

/// A request head, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    Request {
        method: String,
        /// Without the query.
        path: String,
    },
    TooLong,
    Malformed,
}

/// `None` while the head is not whole.
pub(super) fn parse(bytes: &[u8]) -> Option<Head> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => Some(head(&request)),
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => Some(Head::TooLong),
        Err(_) => Some(Head::Malformed),
    }
}

fn head(request: &httparse::Request<'_, '_>) -> Head {
    let target = request.path.unwrap_or_default();
    Head::Request {
        method: request.method.unwrap_or_default().to_owned(),
        path: target.split('?').next().unwrap_or_default().to_owned(),
    }
}

const MAX_HEADERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, path: &str) -> Option<Head> {
        Some(Head::Request {
            method: method.to_owned(),
            path: path.to_owned(),
        })
    }

    #[test]
    fn a_head_is_whole_with_its_empty_line() {
        let bytes = b"GET /metrics?x=1 HTTP/1.1\r\nHost: h\r\n\r\n";
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), None, "{end} bytes");
        }
        assert_eq!(parse(bytes), request("GET", "/metrics"));
        assert_eq!(parse(b"HEAD / HTTP/1.0\n\n"), request("HEAD", "/"));
    }

    #[test]
    fn a_full_buffer_without_an_end_is_too_long() {
        let mut bytes = b"GET /".to_vec();
        bytes.resize(MAX_HEAD_BYTES - 1, b'a');
        assert_eq!(parse(&bytes), None);
        bytes.push(b'a');
        assert_eq!(parse(&bytes), Some(Head::TooLong));
    }

    #[test]
    fn too_many_headers_are_too_long() {
        let mut text = "GET / HTTP/1.1\r\n".to_owned();
        text.push_str(&"a: b\r\n".repeat(MAX_HEADERS + 1));
        text.push_str("\r\n");
        assert_eq!(parse(text.as_bytes()), Some(Head::TooLong));
    }

    #[test]
    fn garbage_is_malformed() {
        for bytes in [
            &b"\x16\x03\x01\x02\x00\x01\x00"[..],
            b"\0\0\0\0",
            b"GET\n\n",
            b"GET / HTTP/9.9\r\n\r\n",
        ] {
            assert_eq!(parse(bytes), Some(Head::Malformed), "{bytes:?}");
        }
    }
}
