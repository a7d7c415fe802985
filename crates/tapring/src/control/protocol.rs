//! What is said on the control socket, a line each way.

use serde::{Deserialize, Serialize};
use serde_json::error::Category;

use crate::policy::PolicyChange;
use crate::value::table;

/// What a client asks.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// The policy in force.
    Policy,
    /// These settings from now on, and the policy that this makes.
    SetPolicy(#[serde(deserialize_with = "table")] PolicyChange),
}

/// What it hears.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// All settings, in force in every worker.
    Policy(PolicyChange),
    /// Nothing was changed, or nobody knows: then the daemon ends.
    Error(String),
}

impl Request {
    /// Reads a line; an error says what it should have been.
    pub(super) fn read(line: &[u8]) -> Result<Self, String> {
        let mut source = serde_json::Deserializer::from_slice(line);
        let request = serde_path_to_error::deserialize(&mut source).map_err(|error| {
            let key = error.path().iter().next_back().map(ToString::to_string);
            refusal(key.as_deref(), error.inner())
        })?;
        let end = source.end().map_err(|error| refusal(None, &error));
        end.map(|()| request)
    }
}

impl Answer {
    /// The line for it.
    pub(super) fn line(&self) -> Vec<u8> {
        // A map with string keys always becomes JSON.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// serde_json tells the place, which helps nobody who knows the key; an unknown key is in its message already.
fn refusal(key: Option<&str>, error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (what, _) = text.split_once(" at line ").unwrap_or((&text, ""));
    match (error.classify(), key) {
        (Category::Data, Some(key)) if !what.starts_with("unknown") => format!("{key}: {what}"),
        (Category::Data, _) => what.to_owned(),
        _ => format!("no JSON: {what}: send {{\"policy\":null}} or {{\"set_policy\":{{...}}}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapring_queue::{Budget, BusyPoll, KickRearm, Policy};

    #[test]
    fn requests_are_read() {
        let change = PolicyChange {
            kick_rearm: Some(KickRearm::BeforeSubmit),
            busy_poll_us: Some(BusyPoll::Auto),
            tx_budget: Budget::new(9),
            ..PolicyChange::default()
        };
        let set =
            br#"{"set_policy":{"kick_rearm":"before-submit","busy_poll_us":"auto","tx_budget":9}}"#;
        assert_eq!(Request::read(set), Ok(Request::SetPolicy(change)));
        for line in [
            &b"\"policy\""[..],
            b"{\"policy\":null}",
            b" {\"policy\" : null} ",
        ] {
            assert_eq!(Request::read(line), Ok(Request::Policy));
        }
        let empty = Request::SetPolicy(PolicyChange::default());
        assert_eq!(Request::read(br#"{"set_policy":{}}"#), Ok(empty));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        for (line, parts) in [
            (
                r#"{"set_policy":{"kick_rearm":"x"}}"#,
                ["kick_rearm: ", "after-completion or before-submit"],
            ),
            (
                r#"{"set_policy":{"busy_poll_us":10001}}"#,
                ["busy_poll_us: ", "auto, or 0 to 10000"],
            ),
            (
                r#"{"set_policy":{"busy_poll_us":1.5}}"#,
                ["busy_poll_us: ", "auto, or 0 to 10000"],
            ),
            (
                r#"{"set_policy":{"busy_poll_us":null}}"#,
                ["busy_poll_us: ", "auto, or 0 to 10000"],
            ),
            (
                r#"{"set_policy":{"busy_poll_interrupt":""}}"#,
                ["busy_poll_interrupt: ", "requeue or rearm"],
            ),
            (
                r#"{"set_policy":{"tx_poll":true}}"#,
                ["tx_poll: ", "on-eagain or always"],
            ),
            (
                r#"{"set_policy":{"rx_wake":0}}"#,
                ["rx_wake: ", "half, first-free, empty, or a number"],
            ),
            (
                r#"{"set_policy":{"rx_wake":-1}}"#,
                ["rx_wake: ", "half, first-free, empty, or a number"],
            ),
            (
                r#"{"set_policy":{"tx_budget":65}}"#,
                ["tx_budget: ", "1 to 64"],
            ),
            (
                r#"{"set_policy":{"rx_budget":[1]}}"#,
                ["rx_budget: ", "1 to 64"],
            ),
            (
                r#"{"set_policy":{"rx_budget":1,"rx_budget":2}}"#,
                ["rx_budget", "duplicate"],
            ),
            (
                r#"{"set_policy":{"kick":1}}"#,
                ["`kick`", "`kick_rearm`, `busy_poll_us`"],
            ),
            (
                r#"{"set_policy":["before-submit"]}"#,
                ["set_policy: ", "settings by name"],
            ),
            (r#"{"set_policy":3}"#, ["set_policy: ", "settings by name"]),
            (r#"{"stop":null}"#, ["`stop`", "`policy` or `set_policy`"]),
            (r#"{"policy":3}"#, ["policy: ", "unit"]),
            ("", ["no JSON", "set_policy"]),
            ("\u{0}", ["no JSON", "set_policy"]),
            ("[[[[", ["no JSON", "set_policy"]),
            (r#"{"policy":null} x"#, ["no JSON", "set_policy"]),
        ] {
            let error = Request::read(line.as_bytes()).expect_err(line);
            assert!(
                parts.iter().all(|part| error.contains(part)),
                "{line}: {error}"
            );
            assert!(
                !error.contains('\n') && !error.contains(" at line"),
                "{error}"
            );
        }
        Request::read(&[b'['; 100_000]).expect_err("deep");
        Request::read(b"\xff").expect_err("no text");
    }

    #[test]
    fn an_answer_is_a_line_that_the_client_reads() {
        let answer = Answer::Policy(PolicyChange::from(Policy::DEFAULT));
        let line = answer.line();
        let text = r#"{"policy":{"kick_rearm":"after-completion","busy_poll_us":"auto","busy_poll_interrupt":"requeue","tx_poll":"on-eagain","rx_wake":"half","tx_budget":64,"rx_budget":64}}"#;
        assert_eq!(String::from_utf8_lossy(&line), format!("{text}\n"));
        assert_eq!(serde_json::from_slice::<Answer>(&line).ok(), Some(answer));
    }
}
