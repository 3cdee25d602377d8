//! An NVMe over Fabrics initiator: copies a file to blocks of a storage target and back, over RDMA.
//!
//! Read first: `submit` and `complete` in `queue.rs`: a command lends its memory to the target by a lease, which ends
//! before the memory is looked at. The bytes of the protocol are in `wire.rs`, the order of the connection's first
//! commands is in `controller.rs`.

mod controller;
mod copy;
mod queue;
mod status;
mod wire;

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use programs::{Context as _, Failure, Measured, run, say};
use verbs_channel::verbs_core::{Context, Device};

use controller::Controller;
use copy::{Copy, Pass};
use queue::Target;
use wire::MAX_NQN;

/// Copy a file to blocks of an NVMe over Fabrics target and back, over RDMA
///
/// The target is that of Linux (nvmet-rdma) or another one with keyed descriptors. It reads and writes this program's
/// buffers by itself, each by a lease that ends with the command. Each byte that was copied is then read
/// once more and compared. There is no multipath, no authentication and no reconnecting.
#[derive(Debug, Parser)]
#[command(name = "nvme_copy", after_help = EXAMPLES)]
struct Options {
    /// The target's address; port 4420 unless given
    #[arg(value_name = "HOST[:PORT]")]
    address: String,

    /// The name of its subsystem
    #[arg(value_name = "NQN", value_parser = nqn)]
    subsystem: String,

    #[arg(value_enum)]
    action: Pass,

    file: PathBuf,

    /// Use this RDMA device [default: the first with an ACTIVE port]
    #[arg(short = 'd', long, alias = "device", value_name = "NAME")]
    ib_dev: Option<String>,

    /// The namespace
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    namespace: u32,

    /// The first block
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    block: u64,

    /// How many bytes to read or compare [default: the rest of the namespace, or the file's length]
    #[arg(long, value_name = "COUNT")]
    bytes: Option<u64>,

    /// KiB of a command, if the target takes that
    #[arg(long, value_name = "KIB", default_value_t = 64, value_parser = RangedU64ValueParser::<usize>::new().range(1..=8192))]
    size: usize,

    /// Commands in flight, if the target takes that
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=127))]
    depth: u16,

    /// Give up on a command, or on connecting, after so long
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,

    /// This host's name, for a target that admits only some [default: a random one]
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    host_nqn: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  nvme_copy 192.0.2.1 nqn.2026-01.com.example:disk write FILE       from block 0 on
  nvme_copy 192.0.2.1 nqn.2026-01.com.example:disk read COPY --bytes 1000000
  nvme_copy 192.0.2.1:4421 nqn.2026-01.com.example:disk verify FILE --block 4096

Linux as the target, with a disk of memory (as root, with the modules nvmet-rdma and null_blk):
  modprobe null_blk nr_devices=1 memory_backed=1 gb=1; modprobe nvmet-rdma
  cd /sys/kernel/config/nvmet; mkdir -p subsystems/NQN/namespaces/1 ports/1
  echo 1 > subsystems/NQN/attr_allow_any_host
  echo /dev/nullb0 > subsystems/NQN/namespaces/1/device_path
  echo 1 > subsystems/NQN/namespaces/1/enable
  echo rdma > ports/1/addr_trtype; echo ipv4 > ports/1/addr_adrfam
  echo 192.0.2.1 > ports/1/addr_traddr; echo 4420 > ports/1/addr_trsvcid
  ln -s $PWD/subsystems/NQN ports/1/subsystems/NQN";

fn nqn(name: &str) -> Result<String, String> {
    match name.len() {
        1..=MAX_NQN if !name.contains('\0') => Ok(name.to_owned()),
        _ => Err(format!("a name has 1 to {MAX_NQN} bytes")),
    }
}

/// With the port, unless it has one.
fn address(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:4420"),
        _ if host.contains(':') => host.to_owned(),
        _ => format!("{host}:4420"),
    }
}

/// A random UUID, and the host's name that is made of it.
fn host() -> Result<([u8; 16], String), Failure> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid");
    let uuid = uuid.context(|| "reading a random UUID")?;
    let hex = u128::from_str_radix(&uuid.trim().replace('-', ""), 16)?;
    let name = format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid.trim());
    Ok((hex.to_be_bytes(), name))
}

fn main() -> ExitCode {
    run(|options: &Options| {
        let device = match &options.ib_dev {
            Some(name) => Device::by_name(name)?.open()?,
            None => Context::first_active()?,
        };
        let (host_id, random) = host()?;
        let target = Target {
            pd: device.alloc_pd()?,
            address: address(&options.address),
            subsystem: options.subsystem.clone(),
            host_id,
            host: options.host_nqn.clone().unwrap_or(random),
            timeout: Duration::from_secs(options.timeout),
        };
        copy(options, &target)?;
        drop(target);
        // An error if an object of the device is left.
        Ok(device.close()?)
    })
}

fn copy(options: &Options, target: &Target) -> Result<(), Failure> {
    let shown = || options.file.display();
    let mut file = match options.action {
        Pass::Read => None,
        _ => Some(File::open(&options.file).context(shown)?),
    };
    let mut controller = Controller::connect(target)?;
    let namespace = controller.namespace(options.namespace)?;
    let (blocks, block_len) = (namespace.blocks, namespace.block_len);
    say(format_args!(
        "{}: namespace {} has {blocks} blocks of {block_len} bytes",
        target.address, options.namespace
    ))?;
    let room = namespace.len_from(options.block).unwrap_or(0);
    let all = match &file {
        // Not its metadata, which has no length of a disk.
        Some(file) => (&*file).seek(SeekFrom::End(0)).context(shown)?,
        None => room,
    };
    let len = options.bytes.unwrap_or(all);
    if len > all || len > room {
        let from = options.block;
        return Err(Failure::new(format!(
            "{len} bytes are too many: the file or the blocks from {from} on have {}",
            all.min(room)
        )));
    }
    // The number of a command's blocks has 16 bits, and its length 24.
    let longest = (options.size << 10)
        .min(controller.max_len)
        .min(block_len << 15);
    let piece = longest / block_len * block_len;
    if piece == 0 {
        return Err(Failure::new(format!(
            "--size, or what the target takes in a command, is less than a block of {block_len} bytes"
        )));
    }
    let queue = controller.open(target, options.depth, piece)?;
    if options.action == Pass::Read {
        let mut create = File::options();
        create.read(true).write(true).create(true).truncate(true);
        file = Some(create.open(&options.file).context(shown)?);
    }
    let file = file.as_ref().ok_or_else(|| Failure::new("no file"))?;
    let mut copy = Copy {
        queue,
        namespace: (options.namespace, namespace),
        first: options.block,
        len,
        piece,
        file,
    };
    let done = match options.action {
        Pass::Write => "written, and compared",
        Pass::Read => "read, and compared",
        Pass::Verify => "compared",
    };
    let begun = Instant::now();
    copy.run(options.action)?;
    let took = begun.elapsed();
    if options.action != Pass::Verify {
        copy.run(Pass::Verify)?;
    }
    let [given, revoked, registrations] = copy.queue.leases;
    let commands = len.div_ceil(piece as u64);
    let measured = Measured::new("nvme_copy", piece as u64, commands, took, true);
    say(format_args!(
        "{len} bytes {done}, in commands of {piece} bytes: {:.3} GB/s; \
         leases: {given} given back, {revoked} revoked, {registrations} registrations",
        measured.gigabytes()
    ))?;
    measured.print()
}
