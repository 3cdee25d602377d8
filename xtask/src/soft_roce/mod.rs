//! Soft-RoCE: placeholder until its own author's file lands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::error::Error;
use crate::packages;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Auto,
    Native,
    Guest,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) way: Way,
    pub(crate) timeout: Option<Duration>,
    pub(crate) hosts: u8,
    pub(crate) install: packages::Policy,
}

#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) argv: Vec<OsString>,
    pub(crate) dir: PathBuf,
    pub(crate) env: Vec<(OsString, OsString)>,
}

pub(crate) fn agent_if_init() {}

pub(crate) fn main(_args: Vec<OsString>) -> Result<ExitCode, Error> {
    Err(Error::new("soft-roce is not built in yet"))
}

pub(crate) fn run(_options: &Options, _command: &Command) -> Result<i32, Error> {
    Err(Error::new("soft-roce is not built in yet"))
}
