//! What it gets: sans-io, a head in, a reply out.

use super::request::Head;

/// A status line, headers and a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    status: &'static str,
    content_type: &'static str,
    body: String,
    /// The body is only counted, not sent.
    head_only: bool,
    allow: Option<&'static str>,
}

/// Answers a request head. `render` is called only when `/metrics` is really asked for.
pub(super) fn to(head: &Head, render: &dyn Fn() -> String) -> Reply {
    let (method, path) = match head {
        Head::TooLong => return Reply::plain("431 Request Header Fields Too Large"),
        Head::Malformed => return Reply::plain("400 Bad Request"),
        Head::Request { method, path } => (method.as_str(), path.as_str()),
    };
    let head_only = method == "HEAD";
    let reply = match path {
        "/metrics" | "/healthz" if !matches!(method, "GET" | "HEAD") => Reply {
            allow: Some("GET, HEAD"),
            ..Reply::plain("405 Method Not Allowed")
        },
        "/metrics" => Reply {
            content_type: EXPOSITION,
            body: render(),
            ..Reply::plain("200 OK")
        },
        "/healthz" => Reply {
            body: "ok\n".to_owned(),
            ..Reply::plain("200 OK")
        },
        _ => Reply::plain("404 Not Found"),
    };
    Reply { head_only, ..reply }
}

impl Reply {
    /// The status said once more as the body, for people.
    fn plain(status: &'static str) -> Self {
        let (content_type, body) = (PLAIN, format!("{status}\n"));
        Self {
            status,
            content_type,
            body,
            head_only: false,
            allow: None,
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        let Self {
            status,
            content_type,
            body,
            ..
        } = &self;
        let length = body.len();
        let allow = self
            .allow
            .map(|methods| format!("Allow: {methods}\r\n"))
            .unwrap_or_default();
        let body = if self.head_only { "" } else { body };
        format!(
            "HTTP/1.1 {status}\r\n\
             Content-Type: {content_type}\r\n\
             Content-Length: {length}\r\n\
             {allow}Connection: close\r\n\
             \r\n\
             {body}"
        )
        .into_bytes()
    }
}

/// The Prometheus text format.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
