//! Our program `perf` as a contender, and C's perftest beside it.

use std::collections::HashMap;
use std::path::Path;

use tinyjson::JsonValue;

use super::contest::{Contender, script, words};

/// The measurement of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The median latency, in microseconds.
    Latency,
    /// Megabytes per second.
    Bandwidth,
    /// Operations per second.
    Rate,
}

/// One run of either program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub(super) kind: Kind,
    /// As perftest calls it: `send`, `write`, `read` or `atomic`.
    pub(super) op: &'static str,
    pub(super) size: u64,
    pub(super) qps: u64,
    /// How many operations on each connection.
    pub(super) count: u64,
    /// How many of them in flight, unless it is a latency or a stream, which takes bytes while it has room.
    pub(super) depth: Option<u64>,
    /// The processors of the two ends.
    pub(super) processors: &'a [String; 2],
    /// The index of the GID, if it matters.
    pub(super) gid: Option<&'a str>,
}

impl Run<'_> {
    /// Its size, queue pairs and count, as options.
    fn numbers(&self) -> [String; 3] {
        [self.size, self.qps, self.count].map(|number| number.to_string())
    }

    /// C's program.
    pub(super) fn perftest(&self) -> Contender {
        let Self { kind, op, .. } = *self;
        let [size, qps, count] = self.numbers();
        let (suffix, read): (_, fn(&str) -> Option<f64>) = match kind {
            Kind::Latency => ("lat", perftest_latency),
            Kind::Bandwidth => ("bw", perftest_bandwidth),
            Kind::Rate => ("bw", perftest_rate),
        };
        let mut options = format!("-n {count} -F");
        if let Some(gid) = self.gid {
            options += &format!(" -x {gid}");
        }
        if op != "atomic" {
            options += &format!(" -s {size}");
        }
        if kind != Kind::Latency {
            if let Some(depth) = self.depth {
                options += &format!(" -t {depth}");
            }
            options += &format!(" -q {qps}");
        }
        // A filter makes a line of ours of its table. The server prints the same table.
        let command = |processor: &str, device: &str, rest: &str| {
            let tool =
                format!("taskset -c {processor} ib_{op}_{suffix} -d \"$0\" {options} {rest}");
            script(&tool, &[device])
        };
        let [first, second] = self.processors;
        let filter = format!("127.0.0.1 | awk '$1 == {size} {{ print \"RESULT\", $0 }}'");
        Contender {
            name: "perftest",
            server: command(first, "{device}", ">/dev/null"),
            client: command(second, "{peer}", &filter),
            read,
        }
    }

    /// Ours, with these options.
    pub(super) fn ours(&self, name: &'static str, program: &Path, options: &[&str]) -> Contender {
        let Self { kind, op, .. } = *self;
        let [size, qps, count] = self.numbers();
        let program = program.display().to_string();
        let command = |processor: &str, device: &str| {
            let mut all = words(&["taskset", "-c", processor, &program, "-d", device]);
            if let Some(gid) = self.gid {
                all.extend(words(&["-g", gid]));
            }
            all
        };
        let [first, second] = self.processors;
        let mut client = command(second, "{peer}");
        let op = if op == "atomic" { "faa" } else { op };
        client.extend(words(&["--json", "--op", op, "-s", &size, "-n", &count]));
        if kind != Kind::Latency {
            client.extend(words(&["--bandwidth", "--qps", &qps]));
            if let Some(depth) = self.depth {
                client.extend(words(&["--depth", &depth.to_string()]));
            }
        }
        client.extend(words(options));
        client.push("127.0.0.1".to_owned());
        Contender {
            name,
            server: command(first, "{device}"),
            client,
            read: match kind {
                Kind::Latency => our_latency,
                Kind::Bandwidth => our_bandwidth,
                Kind::Rate => our_rate,
            },
        }
    }
}

/// Reads `RESULT 64 1000 min max typical average …`: bytes, iterations, and microseconds, of which the
/// typical is the median.
fn perftest_latency(line: &str) -> Option<f64> {
    column(line, 4)
}

/// Reads `RESULT 64 5000 peak average rate`: bytes, iterations, 2^20 bytes per second to two digits
/// after the point, and millions of messages per second to six. The one of the last two with more
/// digits is taken.
fn perftest_bandwidth(line: &str) -> Option<f64> {
    let [bytes, average, rate] = [0, 3, 4].map(|at| column(line, at));
    let (bytes, average, rate) = (bytes?, average?, rate?);
    Some(match average * 1e2 > rate * 1e6 {
        true => average * f64::from(1 << 20) / 1e6,
        false => bytes * rate,
    })
}

fn perftest_rate(line: &str) -> Option<f64> {
    Some(column(line, 4)? * 1e6)
}

fn column(line: &str, at: usize) -> Option<f64> {
    let columns = line.strip_prefix("RESULT ")?;
    columns.split_whitespace().nth(at)?.parse().ok()
}

/// The median latency in our line of JSON.
pub(super) fn our_latency(line: &str) -> Option<f64> {
    figure(line, &["latency_microseconds", "median"])
}

fn our_bandwidth(line: &str) -> Option<f64> {
    figure(line, &["megabytes_per_second"])
}

fn our_rate(line: &str) -> Option<f64> {
    figure(line, &["operations_per_second"])
}

fn figure(line: &str, keys: &[&str]) -> Option<f64> {
    let json: JsonValue = line.parse().ok()?;
    let found = keys.iter().try_fold(&json, |json, key| {
        let object: &HashMap<String, JsonValue> = json.get()?;
        object.get(*key)
    });
    found?.get().copied()
}

#[cfg(test)]
mod tests {
    use super::{
        Kind, Run, our_bandwidth, our_latency, our_rate, perftest_bandwidth, perftest_latency,
        perftest_rate,
    };
    use std::path::Path;

    fn run(kind: Kind, op: &'static str, gid: Option<&'static str>) -> [String; 4] {
        let processors = ["0".to_owned(), "3".to_owned()];
        let run = Run {
            kind,
            op,
            size: 8,
            qps: 16,
            count: 100,
            depth: Some(100),
            processors: &processors,
            gid,
        };
        let (c, ours) = (run.perftest(), run.ours("core", Path::new("perf"), &[]));
        [c.server, c.client, ours.server, ours.client].map(|words| words.join(" "))
    }

    #[test]
    fn both_programs_do_the_same() {
        let [server, client, our_server, our_client] = run(Kind::Bandwidth, "send", Some("1"));
        let tool = "taskset -c 0 ib_send_bw -d \"$0\" -n 100 -F -x 1 -s 8 -t 100 -q 16";
        assert!(server.contains(tool), "{server}");
        assert!(
            client.starts_with("bash -o pipefail -c taskset -c 3 ib_send_bw "),
            "{client}"
        );
        assert!(client.ends_with(" {peer}"), "{client}");
        assert_eq!(our_server, "taskset -c 0 perf -d {device} -g 1");
        let rest = "--op send -s 8 -n 100 --bandwidth --qps 16 --depth 100 127.0.0.1";
        assert!(our_client.ends_with(rest), "{our_client}");
    }

    #[test]
    fn atomics_have_one_size_and_a_latency_has_one_in_flight() {
        let [server, _, our_server, our_client] = run(Kind::Latency, "atomic", None);
        assert!(
            server.contains("ib_atomic_lat -d \"$0\" -n 100 -F >"),
            "{server}"
        );
        assert_eq!(our_server, "taskset -c 0 perf -d {device}");
        assert!(
            our_client.ends_with("--op faa -s 8 -n 100 127.0.0.1"),
            "{our_client}"
        );
    }

    #[test]
    fn output_of_perftest_is_read() {
        let latency = "RESULT  2       1000          5.61           19.53        5.72     \t       5.80       \t0.48   \t\t6.11    \t\t19.53";
        assert_eq!(perftest_latency(latency), Some(5.72));
        // 60 MB/s: the rate would be wrong by 2 %.
        let long = "RESULT  1048576    100              57.30              57.22  \t\t   0.000057";
        let rate = perftest_bandwidth(long).unwrap();
        assert!((rate - 59.999_5).abs() < 1e-3, "{rate}");
        // 50 kB/s: the bandwidth would be wrong by 10 %.
        let short = "RESULT  2          5000             0.05               0.05   \t\t   0.026101";
        let rate = perftest_bandwidth(short).unwrap();
        assert!((rate - 0.052_202).abs() < 1e-9, "{rate}");
        assert_eq!(perftest_rate(short), Some(26_101.0));
        assert_eq!(perftest_latency("RESULT 2 1000"), None);
        assert_eq!(perftest_bandwidth("64 1 2 3 4"), None);
    }

    #[test]
    fn output_of_perf_is_read() {
        let line = r#"{"plan":{"op":"send"},"operations_per_second":3,"megabytes_per_second":1.5,"latency_microseconds":{"median":7.25}}"#;
        assert_eq!(our_latency(line), Some(7.25));
        assert_eq!(
            (our_bandwidth(line), our_rate(line)),
            (Some(1.5), Some(3.0))
        );
        let other = line.replace("{\"median\":7.25}", "null");
        assert_eq!(our_latency(&other), None);
        assert_eq!(our_latency("not JSON"), None);
    }
}
