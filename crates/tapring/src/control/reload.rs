//! SIGHUP: the configuration file is read again.
//!
//! Its policy is put in force as it stands there, over whatever was changed by the control socket. The rest of it needs a
//! restart; what of it has changed since the start is said once a reload. A file that is wrong changes nothing.

use std::rc::Rc;

use tracing::{error, info, warn};

use crate::config::Source;
use crate::settings::Settings;
use crate::signals::Hangups;

use super::live::elsewhere;
use super::{LivePolicy, Refusal};

/// Reloads at each SIGHUP, for as long as the runtime runs.
pub(crate) async fn reload_at_hangups(
    mut hangups: Hangups,
    source: Source,
    started: Settings,
    live: Rc<LivePolicy>,
) {
    if source.file().is_none() {
        hangups.next().await;
        info!(
            device = live.device(),
            "SIGHUP: there is no --config to read again; the policy stays"
        );
    }
    while source.file().is_some() {
        hangups.next().await;
        if let Err(why) = reload(&source, &started, &live).await {
            error!(device = live.device(), "SIGHUP: {why}; the policy stays");
        }
    }
}

async fn reload(source: &Source, started: &Settings, live: &Rc<LivePolicy>) -> Result<(), String> {
    let source = source.clone();
    // The file may be anywhere, a pipe even.
    let read = elsewhere(move || source.read()).await;
    let settings = read
        .map_err(|refusal| refusal.to_string())?
        .map_err(|error| error.to_string())?;
    let policy = settings.policy;
    live.change(move |_| policy)
        .await
        .map_err(|refusal: Refusal| refusal.to_string())?;
    info!(
        device = live.device(),
        "SIGHUP: the policy of the file is in force"
    );
    let waiting = started.differences(&settings);
    if !waiting.is_empty() {
        let keys = waiting.join(", ");
        warn!(
            device = live.device(),
            "{keys}: changed in the file, and needs a restart"
        );
    }
    Ok(())
}
