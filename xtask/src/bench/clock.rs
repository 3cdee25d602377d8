//! The processor time of operations, to which programs that run beside them do not add.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::samples::Spread;
use crate::error::{Context as _, Error};
use crate::process::{display, kill_tree, stop_here_if_ending};

/// These programs take a tenth of a second.
const LIMIT: Duration = Duration::from_secs(60);

/// How often the time of an operation is taken until a long run takes longer than a short one.
const TRIES: u32 = 5;

/// How long operations take, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) c: Spread,
    pub(super) ours: Spread,
    pub(super) ratio: Spread,
}

impl Times {
    /// Measures C's operation and ours in turns. None where the kernel counts no processor time.
    pub(super) fn measure(
        operations: [Timed<'_>; 2],
        dir: &Path,
        rounds: usize,
    ) -> Result<Option<Self>, Error> {
        let Some([c, ours]) = samples(operations, dir, rounds)? else {
            return Ok(None);
        };
        let ratio = Spread::of_ratios(&ours, &c);
        let spreads = (Spread::of(c), Spread::of(ours), ratio);
        Ok(match spreads {
            (Some(c), Some(ours), Some(ratio)) => Some(Self { c, ours, ratio }),
            _ => None,
        })
    }
}

/// An operation of a program, with the instructions that it takes.
pub(super) type Timed<'a> = (&'a Path, &'a str, f64);

/// How long each of some operations takes in each round, in nanoseconds. None where the kernel counts no
/// processor time.
pub(super) fn samples<const N: usize>(
    operations: [Timed<'_>; N],
    dir: &Path,
    rounds: usize,
) -> Result<Option<[Vec<f64>; N]>, Error> {
    let mut all = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for ((program, operation, instructions), samples) in operations.iter().zip(&mut all) {
            let [short, long] = lengths(*instructions);
            let run = |count: u64| {
                let mut command = Command::new(program);
                command.args([operation, &*count.to_string()]);
                processor_time(command.env("LD_LIBRARY_PATH", dir))
            };
            let mut more = None;
            // If the short one took longer, something else has used its processor's caches, or its clock.
            for _ in 0..TRIES {
                let (Some(short_time), Some(long_time)) = (run(short)?, run(long)?) else {
                    return Ok(None);
                };
                more = long_time.checked_sub(short_time);
                if more.is_some() {
                    break;
                }
            }
            let more = more.map(|more| more.as_secs_f64()).ok_or_else(|| {
                let why = format!("{operation}: {short} took longer than {long} in {TRIES} tries");
                Error::new(why)
            })?;
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
            samples.push(more * 1e9 / (long - short) as f64);
        }
    }
    Ok(Some(all))
}

/// How often a loop runs, short and long, so that the difference takes some hundredths of a second.
fn lengths(instructions: f64) -> [u64; 2] {
    const ENOUGH: f64 = 1e8;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between these bounds"
    )]
    let thousands = (ENOUGH / instructions.max(1.0) / 1e3).clamp(16.0, 4e3) as u64;
    [thousands / 4 * 1000, thousands * 1000]
}

/// Runs a program in silence. Its processor time; none if this kernel does not count that.
fn processor_time(command: &mut Command) -> Result<Option<Duration>, Error> {
    let shown = display(command);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.context(|| format!("cannot start `{shown}`"))?;
    let (id, start) = (child.id(), Instant::now());
    // It is asked for once the program has ended, and before that is taken note of.
    while !has_ended(id) {
        stop_here_if_ending();
        if start.elapsed() > LIMIT {
            kill_tree(id);
            child.wait().context(|| format!("cannot stop `{shown}`"))?;
            let limit = LIMIT.as_secs();
            return Err(Error::new(format!("`{shown}` took more than {limit} s")));
        }
        thread::sleep(Duration::from_millis(1));
    }
    let counted = fs::read_to_string(format!("/proc/{id}/schedstat"));
    let status = child
        .wait()
        .context(|| format!("cannot wait for `{shown}`"))?;
    if !status.success() {
        return Err(Error::new(format!("`{shown}` failed: {status}")));
    }
    Ok(counted.ok().and_then(|counted| on_processor(&counted)))
}

fn has_ended(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"));
    // The state comes after the name, in which anything may be.
    stat.map_or(true, |stat| {
        stat.rsplit_once(')')
            .is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
    })
}

/// Reads `12345 67 8`: nanoseconds on a processor, waiting for one, and turns.
fn on_processor(schedstat: &str) -> Option<Duration> {
    let first = schedstat.split_whitespace().next()?;
    let nanoseconds = first.parse().ok().filter(|time| *time > 0)?;
    Some(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::{lengths, on_processor, processor_time};
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn short_operations_run_more_often() {
        assert_eq!(lengths(100.0), [250_000, 1_000_000]);
        assert_eq!(lengths(1e9), [4000, 16_000]);
        assert_eq!(lengths(0.0), [1_000_000, 4_000_000]);
    }

    #[test]
    fn waiting_takes_no_processor_time() {
        let mut sleep = Command::new("sleep");
        if let Some(took) = processor_time(sleep.arg("0.3")).unwrap() {
            assert!(took < Duration::from_millis(250), "{took:?}");
        }
    }

    #[test]
    fn a_failure_is_an_error_and_so_is_a_program_that_is_not_there() {
        let failed = processor_time(&mut Command::new("false")).unwrap_err();
        assert!(failed.to_string().contains("`false` failed"), "{failed}");
        assert!(processor_time(&mut Command::new("/no/such/program")).is_err());
    }

    #[test]
    fn the_first_number_counts() {
        let took = on_processor("1500 7 1\n");
        assert_eq!(took, Some(Duration::from_nanos(1500)));
        // So it is where the kernel does not count.
        assert_eq!(on_processor("0 0 0\n"), None);
    }
}
