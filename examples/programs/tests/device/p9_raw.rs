//! `p9_server` and a client of this test's own, which is killed with requests in flight.

use std::fs;
use std::iter;
use std::net::SocketAddr;
use std::time::Duration;

use programs::p9::{Name, Names, Request, Text};
use verbs_async::verbs_channel::{BufferPool, Channel, Connect, OwnedBuffer, Peer};
use verbs_async::{AsyncGroup, CqEvents, IncomingMessage, IncomingMessages};
use verbs_harness::child::{Child, role};
use verbs_harness::{PATIENCE, begin, context};

use crate::p9::Server;

/// The longest message.
const SIZE: u32 = 16_384;
/// Requests in flight.
const WINDOW: u16 = 16;
/// The bytes that each of them reads.
const COUNT: u32 = 8 << 10;
/// Those of the file.
const LEN: usize = 512 << 10;
/// The fid of the file.
const FILE: u32 = 1;

/// A client that has opened the file.
struct Client {
    messages: IncomingMessages,
    pool: BufferPool,
}

impl Client {
    async fn open(addr: SocketAddr) -> Self {
        let pd = context().alloc_pd().unwrap();
        let window = usize::from(WINDOW);
        let builder = Channel::builder(&pd).max_send_wr(64).max_recv_wr(64);
        let events = CqEvents::create_tokio(pd.context()).unwrap();
        let group = AsyncGroup::new(builder, 1, &events).unwrap();
        let pool = BufferPool::new(&pd, SIZE as usize, 2 * window).unwrap();
        let mut prepared = group.prepare().unwrap();
        for block in iter::from_fn(|| pool.take()).take(window) {
            prepared.start_receive(block).unwrap();
        }
        let options = Connect::within(PATIENCE).raw_private_data(b"");
        let connected = group.connect_prepared(prepared, Peer::cm(addr), options);
        let channel = connected.await.unwrap().channel;
        let mut client = Self {
            messages: channel.into_incoming(iter::empty::<OwnedBuffer>()),
            pool,
        };
        let version = Text(b"9P2000.L");
        let attach = Request::Attach {
            fid: 0,
            afid: u32::MAX,
            uname: Text(b""),
            aname: Text(b""),
            n_uname: 0,
        };
        let walk = Request::Walk {
            fid: 0,
            new_fid: FILE,
            names: Names::new(&[Name::new(b"file").unwrap()]).unwrap(),
        };
        let lopen = Request::Lopen {
            fid: FILE,
            flags: 0,
        };
        for request in [
            Request::Version {
                msize: SIZE,
                version,
            },
            attach,
            walk,
            lopen,
        ] {
            client.send(0, &request).await;
            let answer = client.answer().await;
            assert_ne!(answer.get(4), Some(&7), "{request:?}");
        }
        client
    }

    async fn send(&self, tag: u16, request: &Request<'_>) {
        let mut block = self.pool.take().unwrap();
        let len = request.encode(tag, &mut block).unwrap();
        let message = block.into_range(..len).unwrap();
        let (sent, _block) = self.messages.channel().send(message).await;
        let _success = sent.unwrap();
    }

    async fn answer(&mut self) -> IncomingMessage {
        self.messages.next().await.unwrap().unwrap()
    }

    /// Asks for the part of this number.
    async fn ask(&self, part: u16) {
        let (fid, offset, count) = (FILE, u64::from(part) * u64::from(COUNT), COUNT);
        let request = Request::Read { fid, offset, count };
        self.send(part, &request).await;
    }

    /// Reads the whole file, with the allowed number of requests in flight.
    async fn read(&mut self) -> Vec<u8> {
        let mut file = vec![0; LEN];
        let parts = file.chunks_mut(COUNT as usize).zip(0_u16..);
        for part in 0..WINDOW {
            self.ask(part).await;
        }
        for (to, part) in parts {
            let answer = self.answer().await;
            // Its header, and the number of bytes.
            assert_eq!(answer[5..7], part.to_le_bytes());
            to.copy_from_slice(&answer[11..]);
            drop(answer);
            // Beyond the end there is nothing.
            self.ask(part + WINDOW).await;
        }
        for _ in 0..WINDOW {
            assert_eq!(self.answer().await.len(), 11);
        }
        file
    }
}

/// Memory that a process has pinned, in KiB.
fn pinned(process: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kib = line.unwrap().trim().trim_end_matches("kB").trim_end();
    kib.parse().unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_client_that_is_killed_with_requests_in_flight_leaves_nothing_behind() {
    let runtime = || programs::runtime(1).unwrap();
    if let Some((addr, mut line)) = role() {
        let addr = addr.parse().unwrap();
        runtime().block_on(async {
            let mut client = Client::open(addr).await;
            for part in 0..WINDOW {
                client.ask(part).await;
            }
            line.write("busy");
            loop {
                drop(client.answer().await);
                client.ask(0).await;
            }
        });
    }
    let test = begin!();
    let Some(server) = Server::unmounted(&test, &["--msize", "16384"]) else {
        return;
    };
    let bytes: Vec<u8> = (0..251).cycle().take(LEN).collect();
    fs::write(server.root("file"), &bytes).unwrap();
    let addr: SocketAddr = server.addr.parse().unwrap();
    let process = server.program.id();
    let mut before = (0, 0);
    for number in 1..=2 {
        let mut child = Child::start(&test, &server.addr);
        assert_eq!(child.line.read(), "busy");
        assert!(pinned(process) > before.1);
        child.kill();
        // Counting starts after the first client, as the server keeps threads from then on.
        let ended = format!("client {number} ");
        server.program.prints(&format!("{ended}is here"));
        server.program.waits_for(|| {
            let ends = [format!("{ended}left"), format!("{ended}was lost")];
            ends.iter().any(|end| server.program.has_printed(end))
        });
        if number == 1 {
            before = (server.descriptors(), pinned(process));
        }
        server
            .program
            .waits_for(|| server.descriptors() <= before.0 && pinned(process) <= before.1);
    }
    let read = runtime().block_on(async {
        let mut client = Client::open(addr).await;
        tokio::time::timeout(Duration::from_secs(60), client.read()).await
    });
    assert!(read.unwrap() == bytes);
    server.program.interrupt();
    let output = server.program.succeeds();
    assert!(output.contains("3 clients, "), "{output}");
}
