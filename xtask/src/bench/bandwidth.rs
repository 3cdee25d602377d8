//! Bandwidth over soft-RoCE: `kv_transfer` beside C's `ib_write_bw`, in turns, in one run of soft-RoCE.

use std::time::Duration;

use soft_roce::Options;

use super::progress::Progress;
use crate::error::Error;
use crate::jobs::{self, Event, Job};
use crate::stream::Limits;
use crate::workspace;

/// How often each of the two runs.
const PAIRS: usize = 7;
/// The length of a page, and of a message of C's, in KiB.
const KIB: usize = 16;
/// The TCP port that both use by default.
const PORT: u16 = 18515;
const C: &str = "C";
const OURS: &str = "ours";

/// Runs the pairs, and prints the median of their ratios. It fails only if a program does: an emulated
/// machine is no place for a limit.
pub(super) fn compare(options: &Options) -> Result<(), Error> {
    println!("building the program");
    let built = workspace::build(&[
        "build",
        "--release",
        "--package=examples",
        "--bin=kv_transfer",
        "--message-format=json-render-diagnostics",
    ])?;
    let ours = workspace::example(&built, "kv_transfer")?;
    let ours = ours.display().to_string();
    let pairs = (1..=PAIRS).flat_map(|pair| [c_job(pair), our_job(pair, &ours)]);
    let jobs: Vec<Job> = pairs.collect();
    let (mut rates, mut failure) = (Vec::new(), None);
    let mut progress = Progress::new("runs", jobs.len());
    jobs::run(&jobs, options, &mut |job, event| match event {
        Event::Line(line) => rates.extend(rate(line)),
        Event::End(Err((code, why))) => {
            let why = Error::new(format!("{}: {why}", job.name)).with_code(code);
            failure.get_or_insert(why);
        }
        Event::Start(name) => progress.next(name),
        Event::End(Ok(())) => {}
    })?;
    drop(progress);
    if let Some(failure) = failure {
        return Err(failure);
    }
    println!("{}", summary(&rates)?);
    Ok(())
}

/// C's tool prints a table: a filter makes it a line like those of ours. Its average is in Gb/s.
fn c_job(pair: usize) -> Job {
    let bytes = (KIB << 10).to_string();
    let command = |device: &str, rest: &str| {
        let tool = format!(
            "ib_write_bw -d \"$0\" -x 1 -s {bytes} -n 2560 -t 64 -F --report_gbits {rest} | awk '$1 == {bytes} {{ \
             printf \"RESULT op={C} bytes=%d iters=%d usec=%f\\n\", $1, $2, $1 * $2 * 8 / $4 / 1000 }}'"
        );
        ["sh", "-c", &tool, device].map(str::to_owned).to_vec()
    };
    // The server prints the same table.
    let server = command("{device}", ">/dev/null");
    job(C, pair, vec![server, command("{peer}", "127.0.0.1")])
}

fn our_job(pair: usize, program: &str) -> Job {
    let page = KIB.to_string();
    let command = |device: &str, rest: &[&str]| {
        let words = [&[program, "-d", device, "--page", &page], rest].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    // As many pages as C's tool has messages.
    let server = command("{device}", &["--count-rails", "-n", "20"]);
    job(OURS, pair, vec![server, command("{peer}", &["127.0.0.1"])])
}

fn job(name: &str, pair: usize, commands: Vec<Vec<String>>) -> Job {
    Job {
        name: format!("{name} {pair}"),
        dir: workspace::root().display().to_string(),
        env: vec!["VERBS_RESULT_LINES=1".to_owned()],
        limits: Limits {
            total: Duration::from_secs(120),
            silence: Duration::from_secs(120),
        },
        commands,
        port: PORT,
    }
}

/// Megabytes per second, of a line of either program, and whether it is ours.
fn rate(line: &str) -> Option<(bool, f64)> {
    let value = |name: &str| {
        let words = line.strip_prefix("RESULT ")?.split_whitespace();
        let mut values = words.filter_map(|word| word.split_once('='));
        values.find_map(|(key, value)| (key == name).then_some(value))
    };
    let number = |name: &str| value(name)?.parse::<f64>().ok();
    let rate = number("bytes")? * number("iters")? / number("usec")?;
    (rate.is_finite() && rate > 0.0).then_some((value("op")? != C, rate))
}

/// Both medians, and the median of the ratios of each pair.
fn summary(rates: &[(bool, f64)]) -> Result<String, Error> {
    let of = |is_ours: bool| -> Vec<f64> {
        let rates = rates.iter().filter(|(ours, _)| *ours == is_ours);
        rates.map(|(_, rate)| *rate).collect()
    };
    let (c, ours) = (of(false), of(true));
    let ratios: Vec<f64> = ours.iter().zip(&c).map(|(ours, c)| ours / c).collect();
    let medians = [c.clone(), ours, ratios.clone()].map(median);
    let [Some(c_rate), Some(our_rate), Some(ratio)] = medians else {
        return Err(Error::new("the programs printed no result"));
    };
    let (least, most) = ratios.iter().fold((ratio, ratio), |(least, most), ratio| {
        (ratio.min(least), ratio.max(most))
    });
    Ok(format!(
        "writes of {KIB} KiB over soft-RoCE, medians of {} pairs:\n\
         ib_write_bw {c_rate:.1} MB/s, kv_transfer {our_rate:.1} MB/s, ratio {ratio:.2} ({least:.2} to {most:.2})",
        c.len()
    ))
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::{PAIRS, c_job, our_job, rate, summary};

    #[test]
    fn rates_of_both_programs_are_read() {
        let ours = "RESULT op=kv_transfer bytes=100 iters=10 usec=50.0 verified=yes";
        assert_eq!(rate(ours), Some((true, 20.0)));
        let c = "RESULT op=C bytes=100 iters=10 usec=100.0";
        assert_eq!(rate(c), Some((false, 10.0)));
        assert_eq!(rate("RESULT op=C bytes=1 iters=1 usec=0"), None);
        assert_eq!(rate("bytes=1 iters=1 usec=1"), None);
    }

    #[test]
    fn ratio_is_the_median_of_those_of_the_pairs() {
        let pair = |c, ours| [(false, c), (true, ours)];
        let rates = [pair(10.0, 20.0), pair(30.0, 30.0), pair(20.0, 10.0)].concat();
        let text = summary(&rates).unwrap();
        let expected = "ib_write_bw 20.0 MB/s, kv_transfer 20.0 MB/s, ratio 1.00 (0.50 to 2.00)";
        assert!(text.ends_with(expected), "{text}");
        assert!(summary(&[(false, 1.0)]).is_err());
    }

    #[test]
    fn both_move_as_many_bytes() {
        let words = |job: &super::Job| job.commands.concat().join(" ");
        let (c, ours) = (words(&c_job(PAIRS)), words(&our_job(PAIRS, "x")));
        // 8 layers of 16 pages, in 20 requests.
        assert!(c.contains("-s 16384 -n 2560 "), "{c}");
        assert!(ours.contains("--page 16 --count-rails -n 20"), "{ours}");
    }
}
