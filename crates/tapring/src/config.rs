//! Where settings come from: the command line, and the file that it may name.
//!
//! The file is TOML; its keys are the long options of `serve` with `_` for `-`, and those of the policy are in a table of
//! their own. What the command line says goes before what the file says, at a reload too.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_path_to_error::Error as PathError;
use thiserror::Error;
use toml::de::Error as TomlError;

use crate::cli::ServeArgs;
use crate::options::Options;
use crate::settings::{Settings, SettingsError};

/// Settings that cannot be served with.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// No file to read.
    #[error("config {}: cannot read it: {source}: create it, or name another with --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file says something that means nothing.
    #[error("config {}:{line}: {what}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key, its value and what is allowed.
        what: String,
    },
    /// Something that has no default was said nowhere.
    #[error("config {}: `{key}` is missing: add it there, or give --{}", path.display(), key.replace('_', "-"))]
    Missing {
        /// The file.
        path: PathBuf,
        /// What is missing.
        key: &'static str,
    },
    /// Each is right, and they do not go together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// Where the settings of a device are read from, again and again.
#[derive(Clone, Debug)]
pub struct Source {
    given: Options,
    file: Option<PathBuf>,
}

impl From<ServeArgs> for Source {
    fn from(args: ServeArgs) -> Self {
        Self {
            given: args.options,
            file: args.config,
        }
    }
}

impl Source {
    /// The file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The settings as they are now, checked.
    pub fn read(&self) -> Result<Settings, ConfigError> {
        let said = match &self.file {
            Some(path) => read(path)?,
            None => Options::default(),
        };
        let settings = self.given.clone().over(said).settings();
        let settings = settings.map_err(|key| ConfigError::Missing {
            path: self.file.clone().unwrap_or_default(),
            key,
        })?;
        settings.check()?;
        Ok(settings)
    }
}

fn read(path: &Path) -> Result<Options, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    parse(&text).map_err(|(line, what)| ConfigError::Wrong {
        path: path.to_owned(),
        line,
        what,
    })
}

/// An error is the line it is in, and what is wrong there.
fn parse(text: &str) -> Result<Options, (usize, String)> {
    let source = toml::Deserializer::parse(text).map_err(|error| {
        let number = line_of(text, &error);
        let line = text.lines().nth(number - 1).unwrap_or_default();
        (number, format!("{}: `{}`", error.message(), line.trim()))
    })?;
    serde_path_to_error::deserialize(source)
        .map_err(|error| (line_of(text, error.inner()), with_path(&error)))
}

/// An unknown key is in its message already.
fn with_path(error: &PathError<TomlError>) -> String {
    let what = error.inner().message();
    if what.starts_with("unknown field") {
        return what.replacen("unknown field", "unknown key", 1);
    }
    format!("{}: {what}", error.path())
}

fn line_of(text: &str, error: &TomlError) -> usize {
    let before = error.span().and_then(|span| text.get(..span.start));
    1 + before.unwrap_or_default().matches('\n').count()
}
