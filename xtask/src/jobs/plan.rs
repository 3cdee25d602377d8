//! The list of jobs as a text file: the way from the host into the virtual machine.

use std::time::Duration;

use crate::error::Error;
use crate::stream::Limits;

/// Something to run where the RDMA devices are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    /// Name in reports; unique in its list.
    pub(crate) name: String,
    /// The folder it runs in.
    pub(crate) dir: String,
    /// Variables added to its environment, as `NAME=VALUE`.
    pub(crate) env: Vec<String>,
    /// How long it may take.
    pub(crate) limits: Limits,
    /// The programs: one; or a server and its clients, which start once it listens on `port`. The
    /// words `{device}` and `{peer}` stand for the two RDMA devices.
    pub(crate) commands: Vec<Vec<String>>,
    /// The TCP port that the first command listens on, if there are more commands than one.
    pub(crate) port: u16,
}

/// The text of `jobs`.
pub(super) fn write(jobs: &[Job]) -> Result<String, Error> {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        if value.contains('\n') {
            return Err(Error::new(format!(
                "a job's {key} is more than a line: {value:?}"
            )));
        }
        text.push_str(&format!("{key} {value}\n"));
        Ok(())
    };
    for job in jobs {
        line("job", &job.name)?;
        line("dir", &job.dir)?;
        line("total", &job.limits.total.as_secs().to_string())?;
        line("silence", &job.limits.silence.as_secs().to_string())?;
        line("port", &job.port.to_string())?;
        for variable in &job.env {
            line("env", variable)?;
        }
        for command in &job.commands {
            line("run", "")?;
            for arg in command {
                line("arg", arg)?;
            }
        }
    }
    Ok(text)
}

/// The jobs in `text`.
pub(super) fn read(text: &str) -> Result<Vec<Job>, Error> {
    let mut jobs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        if key == "job" {
            jobs.push(Job {
                name: value.to_owned(),
                dir: String::new(),
                env: Vec::new(),
                limits: Limits {
                    total: Duration::ZERO,
                    silence: Duration::ZERO,
                },
                commands: Vec::new(),
                port: 0,
            });
        } else if jobs
            .last_mut()
            .and_then(|job| set(job, key, value))
            .is_none()
        {
            return Err(Error::new(format!(
                "line {} of the job file is no job: {line}",
                index + 1
            )));
        }
    }
    Ok(jobs)
}

fn set(job: &mut Job, key: &str, value: &str) -> Option<()> {
    let seconds = || value.parse().ok().map(Duration::from_secs);
    match key {
        "dir" => job.dir = value.to_owned(),
        "total" => job.limits.total = seconds()?,
        "silence" => job.limits.silence = seconds()?,
        "port" => job.port = value.parse().ok()?,
        "env" => job.env.push(value.to_owned()),
        "run" => job.commands.push(Vec::new()),
        "arg" => job.commands.last_mut()?.push(value.to_owned()),
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::{Job, read, write};
    use crate::stream::Limits;
    use std::time::Duration;

    fn job() -> Job {
        Job {
            name: "a b".into(),
            dir: "/some where".into(),
            env: vec!["A=b c".into()],
            limits: Limits {
                total: Duration::from_secs(3),
                silence: Duration::from_secs(2),
            },
            commands: vec![vec!["x".into(), String::new()], vec!["y".into()]],
            port: 7,
        }
    }

    #[test]
    fn jobs_come_back_as_they_were() {
        let jobs = [
            job(),
            Job {
                name: "c".into(),
                ..job()
            },
        ];
        assert_eq!(read(&write(&jobs).unwrap()).unwrap(), jobs);
    }

    #[test]
    fn invalid_jobs_are_rejected() {
        assert!(read("arg x\n").is_err());
        assert!(read("job a\nport many\n").is_err());
        let lines = Job {
            name: "a\nb".into(),
            ..job()
        };
        assert!(write(&[lines]).is_err());
    }
}
