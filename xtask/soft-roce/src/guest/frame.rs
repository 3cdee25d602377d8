//! The protocol of the guest's port: frames of a kind, a length and bytes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use crate::error::Error;

/// The contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// From the guest: the RDMA devices are up, a job can come.
    Ready,
    /// From the guest: the job cannot be run; an exit code, then why.
    Failed,
    /// From the guest: the job wrote to its standard output.
    Stdout,
    /// From the guest: the job wrote to its standard error.
    Stderr,
    /// From the guest: the job took one [`Kind::Stdin`] frame.
    Taken,
    /// From the guest: the job ended, with this exit code.
    Exit,
    /// To the guest: run this [`Job`].
    Job,
    /// To the guest: input of the job; empty at its end.
    Stdin,
    /// To the guest: send this signal to the job.
    Signal,
    /// To the guest: the terminal's rows and columns changed.
    Resize,
}

const KINDS: [(Kind, u8); 10] = [
    (Kind::Ready, b'R'),
    (Kind::Failed, b'F'),
    (Kind::Stdout, b'O'),
    (Kind::Stderr, b'E'),
    (Kind::Taken, b'A'),
    (Kind::Exit, b'X'),
    (Kind::Job, b'J'),
    (Kind::Stdin, b'I'),
    (Kind::Signal, b'S'),
    (Kind::Resize, b'W'),
];

/// Output and input are cut into pieces of at most this size.
pub(crate) const PIECE: usize = 32 * 1024;

/// More than this in one frame means that the other end has gone mad. An environment fits.
const LONGEST: usize = 8 << 20;

const HEADER: usize = 5;

/// A whole frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    /// The number that [`Kind::Exit`] and [`Kind::Signal`] carry.
    pub(crate) fn number(&self) -> Option<i32> {
        self.bytes.first_chunk().copied().map(i32::from_le_bytes)
    }

    /// The reason that [`Kind::Failed`] carries, as an error with its exit code.
    pub(crate) fn failure(&self) -> Error {
        let code = self.number().and_then(|code| u8::try_from(code).ok());
        let why = String::from_utf8_lossy(self.bytes.get(4..).unwrap_or_default());
        Error::new(why).with_code(code.unwrap_or(125))
    }

    /// The rows and columns that [`Kind::Resize`] carries.
    pub(crate) fn size(&self) -> Option<(u16, u16)> {
        let &[a, b, c, d] = self.bytes.first_chunk()?;
        Some((u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])))
    }
}

/// The bytes of a [`Kind::Resize`] frame.
pub(crate) fn size_bytes((rows, columns): (u16, u16)) -> Vec<u8> {
    [rows.to_le_bytes(), columns.to_le_bytes()].concat()
}

/// A frame as it goes over the port.
pub(crate) fn encode(kind: Kind, bytes: &[u8]) -> Vec<u8> {
    let code = KINDS.iter().find(|(known, _)| *known == kind);
    let code = code.map_or(0, |&(_, code)| code);
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&[code][..], &len.to_le_bytes(), bytes].concat()
}

/// Puts frames together from the pieces in which they arrive.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// Takes bytes from the port.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is there; an error if these are no frames.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, String> {
        let Some((header, rest)) = self.pending.split_at_checked(HEADER) else {
            return Ok(None);
        };
        let kind = KINDS.iter().find(|(_, code)| *code == header[0]);
        let &(kind, _) = kind.ok_or_else(|| format!("no frame starts with {:#x}", header[0]))?;
        let len = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > LONGEST {
            return Err(format!("a frame of {len} bytes"));
        }
        let Some(bytes) = rest.get(..len).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.pending.drain(..HEADER + len);
        Ok(Some(Frame { kind, bytes }))
    }
}

/// The job that the guest runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) argv: Vec<OsString>,
    pub(crate) dir: PathBuf,
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Whether input will come; else the job reads end-of-file.
    pub(crate) stdin: bool,
    /// Whether standard error goes where standard output goes, so that their order is kept.
    pub(crate) merged: bool,
    /// Rows and columns, if the job gets a terminal.
    pub(crate) terminal: Option<(u16, u16)>,
}

impl Job {
    /// The bytes of a [`Kind::Job`] frame: strings that end in NUL.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (rows, columns) = self.terminal.unwrap_or((0, 0));
        let flags = format!(
            "{} {} {rows} {columns} {}",
            u8::from(self.stdin),
            u8::from(self.merged),
            self.argv.len()
        );
        let mut bytes = Vec::new();
        let mut add = |parts: &[&OsStr]| {
            for part in parts {
                bytes.extend_from_slice(part.as_bytes());
            }
            bytes.push(0);
        };
        add(&[OsStr::new(&flags)]);
        add(&[self.dir.as_os_str()]);
        for arg in &self.argv {
            add(&[arg]);
        }
        for (name, value) in &self.env {
            add(&[name, OsStr::new("="), value]);
        }
        bytes
    }

    /// The job that `bytes` are, if they are one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut strings = bytes.strip_suffix(&[0])?.split(|&byte| byte == 0);
        let flags = str::from_utf8(strings.next()?).ok()?;
        let flags: Option<Vec<u16>> = flags.split(' ').map(|flag| flag.parse().ok()).collect();
        let [stdin, merged, rows, columns, argc] = flags?[..] else {
            return None;
        };
        let owned = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let dir = PathBuf::from(owned(strings.next()?));
        let argv: Vec<OsString> = strings
            .by_ref()
            .take(usize::from(argc))
            .map(owned)
            .collect();
        let env = strings.map(|variable| {
            let at = variable.iter().position(|&byte| byte == b'=')?;
            Some((owned(&variable[..at]), owned(&variable[at + 1..])))
        });
        let env: Option<Vec<_>> = env.collect();
        let whole = argv.len() == usize::from(argc) && argc > 0;
        whole.then_some(Self {
            argv,
            dir,
            env: env?,
            stdin: stdin == 1,
            merged: merged == 1,
            terminal: (rows > 0).then_some((rows, columns)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Decoder, Frame, Job, KINDS, Kind, encode, size_bytes};

    #[test]
    fn frames_survive_any_cut() {
        let mut wire = Vec::new();
        for (kind, _) in KINDS {
            wire.extend(encode(kind, b"some bytes"));
            wire.extend(encode(kind, b""));
        }
        for cut in 1..wire.len() {
            let mut decoder = Decoder::default();
            let mut frames = Vec::new();
            for piece in wire.chunks(cut) {
                decoder.push(piece);
                while let Some(frame) = decoder.next().unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames.len(), 2 * KINDS.len(), "cut at {cut}");
            assert_eq!(frames[0].kind, Kind::Ready);
            assert_eq!(frames[0].bytes, b"some bytes");
            assert_eq!(frames[1].bytes, b"");
        }
    }

    #[test]
    fn invalid_frames_are_rejected() {
        let mut decoder = Decoder::default();
        decoder.push(b"Linux version 6");
        assert!(decoder.next().is_err());
        let mut decoder = Decoder::default();
        decoder.push(&[b'O', 0xff, 0xff, 0xff, 0xff]);
        assert!(decoder.next().is_err());
    }

    #[test]
    fn numbers_come_back() {
        let frame = |bytes: &[u8]| Frame {
            kind: Kind::Exit,
            bytes: bytes.to_vec(),
        };
        assert_eq!(frame(&(-1_i32).to_le_bytes()).number(), Some(-1));
        assert_eq!(frame(b"abc").number(), None);
        assert_eq!(frame(&size_bytes((24, 80))).size(), Some((24, 80)));
        let failed = [&127_i32.to_le_bytes()[..], b"no such file"].concat();
        assert_eq!(frame(&failed).failure().to_string(), "no such file");
    }

    #[test]
    fn a_job_comes_back_as_it_was() {
        let job = Job {
            argv: vec!["printf".into(), "".into(), "a=b c".into()],
            dir: "/some where".into(),
            env: vec![("A".into(), "x=y".into()), ("EMPTY".into(), "".into())],
            stdin: true,
            merged: false,
            terminal: Some((24, 80)),
        };
        assert_eq!(Job::decode(&job.encode()), Some(job.clone()));
        let plain = Job {
            stdin: false,
            merged: true,
            terminal: None,
            ..job
        };
        assert_eq!(Job::decode(&plain.encode()), Some(plain));
    }

    #[test]
    fn invalid_jobs_are_rejected() {
        for bytes in [
            &b""[..],
            b"\0",
            b"0 0 0 0 0\0/\0",
            b"0 0 0 0 2\0/\0a\0",
            b"x\0/\0a\0",
        ] {
            assert_eq!(Job::decode(bytes), None, "{bytes:?}");
        }
    }
}
