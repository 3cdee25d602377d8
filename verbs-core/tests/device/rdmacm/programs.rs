//! Other programs at the other end: those of librdmacm, each both ways round.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use verbs_core::completion::Grh;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::path::{AhAttr, QKey};
use verbs_core::rdmacm::{
    Connected, Connection, Connector, DatagramListener, DatagramService, Message,
};
use verbs_core::work_request::DatagramWorkRequest;
use verbs_core::{
    AccessFlags, Error, MemoryRegion, PreparedQueuePair, QueuePair, ReadWorkRequest,
    ReceiveWorkRequest, RemoteMemoryRegion, SendWorkRequest, WorkSuccess, WriteWorkRequest,
};
use verbs_harness::pair::{End, Side};
use verbs_harness::{PATIENCE, Test, begin, ip_of_another_process, peer_name, until, wait_for};

use super::{Server, route};

/// A program that runs beside the test, and is ended with it.
struct Program {
    child: Child,
    line: String,
}

impl Program {
    fn start(program: &str, args: &str) -> Self {
        let mut command = Command::new(program);
        command.args(args.split_whitespace());
        let started = command.stdout(Stdio::null()).stdin(Stdio::null()).spawn();
        let line = format!("{program} {args}");
        let child = started.unwrap_or_else(|error| panic!("{line}: {error} (rdmacm-utils)"));
        Self { child, line }
    }

    fn succeeds(mut self) {
        let mut status = None;
        let ended = until(PATIENCE, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(ended, "{} does not end", self.line);
        assert!(status.unwrap().success(), "{}: {status:?}", self.line);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// An address at which nothing listens, and a program can: in user space, it has cards of its own.
fn free(test: &Test) -> Option<SocketAddr> {
    let Server { side, mut addr, .. } = Server::new(test, &peer_name())?;
    addr.set_ip(ip_of_another_process(&side.context)?);
    Some(addr)
}

/// Connects with what `prepare` makes, as soon as the program listens.
fn connects<T>(
    addr: SocketAddr,
    prepare: impl Fn(Side) -> (T, PreparedQueuePair),
) -> (T, Connected) {
    let mut connected = None;
    let listens = until(PATIENCE, || {
        let route = route(Connector::new().unwrap(), addr);
        let (kept, prepared) = prepare(Side::new(&route.device_name()));
        let step = route.connect(prepared, Message::raw(b""));
        match step.and_then(|step| step.wait(Some(PATIENCE))) {
            Ok(end) => connected = Some((kept, end)),
            Err(Error::ConnectionManager { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        connected.is_some()
    });
    assert!(listens, "the program listens at {addr}");
    connected.unwrap()
}

/// The messages that both programs of a connection send: their number and size.
#[derive(Clone, Copy)]
struct Messages {
    count: usize,
    size: usize,
    /// Whether this side sends first, and then receives.
    first: bool,
}

impl Messages {
    /// A queue pair with receives for them, in memory that stays for as long as the program.
    fn prepared(self, side: &Side) -> PreparedQueuePair {
        let qp = side.prepared();
        let inbox = side.pd.reg_mr(vec![0_u8; self.size]).unwrap();
        let inbox = Box::leak(Box::new(inbox));
        for _ in 0..self.count {
            let mut room = inbox.scatter_element(..).unwrap();
            // SAFETY: the region is never freed, and never read.
            unsafe { qp.post_receive(&mut ReceiveWorkRequest::new(&mut room)) }.unwrap();
        }
        qp
    }

    fn exchange(self, side: &Side, qp: &QueuePair) {
        for sends in [self.first, !self.first] {
            if sends {
                let region = side.pd.reg_mr(vec![7_u8; self.size]).unwrap();
                for _ in 0..self.count {
                    let mut element = region.gather_element(..).unwrap();
                    // SAFETY: the request completes below, before the region goes.
                    unsafe { qp.post_send(&mut SendWorkRequest::new(&mut element)) }.unwrap();
                }
                for sent in wait_for(&side.send_cq, self.count) {
                    sent.result().unwrap();
                }
            } else {
                for received in wait_for(&side.recv_cq, self.count) {
                    let len = received.result().unwrap().byte_len();
                    assert_eq!(usize::try_from(len).unwrap(), self.size);
                }
            }
        }
    }

    /// This side is the client of a program that disconnects.
    fn as_client(self, test: &Test, program: &str, args: &str) {
        let Some(addr) = free(test) else { return };
        let args = format!("{args} -p {}", addr.port());
        let program = Program::start(program, &args);
        let (side, mut end) = connects(addr, |side| {
            let prepared = self.prepared(&side);
            (side, prepared)
        });
        self.exchange(&side, &end.queue_pair);
        assert!(end.connection.wait_disconnected(Some(PATIENCE)).unwrap());
        end.connection.disconnect().unwrap();
        program.succeeds();
    }

    /// This side is the server, which disconnects if the program does not.
    fn as_server(self, test: &Test, program: &str, disconnects: bool) {
        let mut server = server!(test);
        let args = format!("-s {} -p {}", server.addr.ip(), server.addr.port());
        let program = Program::start(program, &args);
        let request = server.request();
        let answers = request.accept(self.prepared(&server.side), Message::raw(b""));
        let mut end = answers.unwrap().wait(Some(PATIENCE)).unwrap();
        self.exchange(&server.side, &end.queue_pair);
        if disconnects {
            end.connection.disconnect().unwrap();
        }
        assert!(end.connection.wait_disconnected(Some(PATIENCE)).unwrap());
        drop(end.connection.disconnect());
        program.succeeds();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn ucmatose_is_client_and_server() {
    let test = begin!();
    let messages = |first| Messages {
        count: 10,
        size: 100,
        first,
    };
    messages(false).as_client(&test, "ucmatose", "");
    messages(true).as_server(&test, "ucmatose", true);
}

#[test]
#[ignore = "needs an RDMA device"]
fn rdma_client_and_rdma_server_are_peers() {
    let test = begin!();
    let messages = |first| Messages {
        count: 1,
        size: 16,
        first,
    };
    messages(true).as_client(&test, "rdma_server", "");
    messages(false).as_server(&test, "rdma_client", false);
}

/// How long the regions of `rping` are.
const PING: usize = 64;

/// One end of `rping`: each message is the address, key and length of a region.
struct Ping {
    end: End,
    inbox: MemoryRegion<Vec<u8>>,
}

impl Ping {
    /// A queue pair that has a receive, and its parts.
    fn prepared(side: Side) -> ((Side, MemoryRegion<Vec<u8>>), PreparedQueuePair) {
        let mut inbox = side.pd.reg_mr(vec![0_u8; 16]).unwrap();
        let prepared = side.prepared();
        let mut room = inbox.scatter_element(..).unwrap();
        // SAFETY: the queue pair goes before the region, or it completes.
        unsafe { prepared.post_receive(&mut ReceiveWorkRequest::new(&mut room)) }.unwrap();
        ((side, inbox), prepared)
    }

    fn new(
        ((side, inbox), connected): ((Side, MemoryRegion<Vec<u8>>), Connected),
    ) -> (Self, Connection) {
        let qp = connected.queue_pair;
        let end = End { qp, side };
        (Self { end, inbox }, connected.connection)
    }

    /// The region of the next message; there is a receive for another one then.
    fn take(&mut self) -> RemoteMemoryRegion {
        assert_eq!(self.end.received().byte_len(), 16);
        let bytes: [u8; 16] = self.inbox[..].try_into().unwrap();
        let mut room = self.inbox.scatter_element(..).unwrap();
        self.end.receive(ReceiveWorkRequest::new(&mut room));
        let (addr, rest) = bytes.split_first_chunk().unwrap();
        let (rkey, len) = rest.split_first_chunk().unwrap();
        let len = u32::from_be_bytes(len.try_into().unwrap());
        let (addr, rkey) = (u64::from_be_bytes(*addr), u32::from_be_bytes(*rkey));
        RemoteMemoryRegion::new(addr, len.into(), rkey).unwrap()
    }

    fn send(&self, of: &RemoteMemoryRegion) {
        let mut bytes = of.addr().to_be_bytes().to_vec();
        bytes.extend(of.rkey().to_be_bytes());
        bytes.extend(u32::try_from(of.len()).unwrap().to_be_bytes());
        let region = self.end.pd().reg_mr(bytes).unwrap();
        let mut element = region.gather_element(..).unwrap();
        self.end.post_one(SendWorkRequest::new(&mut element));
        self.end.sent();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn rping_reads_and_writes_the_memory_of_its_client() {
    let test = begin!();
    let Some(addr) = free(&test) else { return };
    let args = format!("-s -a {} -p {}", addr.ip(), addr.port());
    let program = Program::start("rping", &args);
    let (mut ping, mut connection) = Ping::new(connects(addr, Ping::prepared));
    let given = |access| ping.end.given(vec![0_u8; PING], access);
    let source = given(AccessFlags::REMOTE_READ);
    let sink = given(AccessFlags::REMOTE_WRITE);
    for round in 0..3 {
        // It writes what it has read as a string of C.
        let mut sent = vec![b'a' + round; PING];
        sent[PING - 1] = 0;
        source.write(0, &sent).unwrap();
        ping.send(&source.remote());
        ping.take();
        ping.send(&sink.remote());
        ping.take();
        let mut came = vec![0; PING];
        sink.read(0, &mut came).unwrap();
        assert_eq!(came, sent);
    }
    connection.disconnect().unwrap();
    assert!(connection.wait_disconnected(Some(PATIENCE)).unwrap());
    program.succeeds();
}

#[test]
#[ignore = "needs an RDMA device"]
fn rping_checks_what_its_server_read_and_wrote() {
    let test = begin!();
    let mut server = server!(test);
    let (ip, port) = (server.addr.ip(), server.addr.port());
    let program = Program::start("rping", &format!("-c -V -C 3 -S {PING} -a {ip} -p {port}"));
    let request = server.request();
    let Server { side, .. } = server;
    let (parts, prepared) = Ping::prepared(side);
    let step = request.accept(prepared, Message::raw(b"")).unwrap();
    let (mut ping, mut connection) = Ping::new((parts, step.wait(Some(PATIENCE)).unwrap()));
    for _ in 0..3 {
        let from = ping.take();
        let mut bytes = ping.end.pd().reg_mr(vec![0_u8; PING]).unwrap();
        let mut room = bytes.scatter_element(..).unwrap();
        let from = from.slice(..PING as u64).unwrap();
        ping.end
            .post_one(ReadWorkRequest::new(&mut room, &from).unwrap());
        ping.end.sent();
        assert!(bytes.starts_with(b"rdma-ping-"), "{:?}", &bytes[..]);
        // Its message is of the same length, whatever is in it.
        ping.send(&from);
        let to = ping.take();
        let mut element = bytes.gather_element(..).unwrap();
        ping.end
            .post_one(WriteWorkRequest::new(&mut element, &to).unwrap());
        ping.end.sent();
        ping.send(&to);
    }
    assert!(connection.wait_disconnected(Some(PATIENCE)).unwrap());
    drop(connection.disconnect());
    program.succeeds();
}

/// Number of datagrams that `udaddy` sends, with its queue pair's number as immediate data.
const DATAGRAMS: usize = 10;
const DATAGRAM: usize = 100;

/// A queue pair for datagrams with receives, in memory that stays for as long as the program.
fn datagrams(side: &Side) -> (DatagramQueuePair, &'static MemoryRegion<Vec<u8>>) {
    let qp = DatagramQueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq)
        .qkey(QKey::RDMA_UDP)
        .build()
        .unwrap();
    let inbox = side.pd.reg_mr(vec![0_u8; Grh::LEN + DATAGRAM]).unwrap();
    let inbox = Box::leak(Box::new(inbox));
    for _ in 0..DATAGRAMS {
        let mut room = inbox.scatter_element(..).unwrap();
        // SAFETY: the region is never freed; it is read when all have completed.
        unsafe { qp.post_receive(&mut ReceiveWorkRequest::new(&mut room)) }.unwrap();
    }
    (qp, inbox)
}

fn send_datagrams(side: &Side, qp: &DatagramQueuePair, path: &AhAttr, to: u32) {
    let ah = side.pd.create_ah(path).unwrap();
    let region = side.pd.reg_mr(vec![7_u8; DATAGRAM]).unwrap();
    for _ in 0..DATAGRAMS {
        let mut element = region.gather_element(..).unwrap();
        let request = DatagramWorkRequest::new(&mut element, &ah, to, QKey::RDMA_UDP);
        // SAFETY: the request completes below, before the region and the handle go.
        unsafe { qp.post_send(&mut request.immediate(qp.qp_num())) }.unwrap();
    }
    for sent in wait_for(&side.send_cq, DATAGRAMS) {
        sent.result().unwrap();
    }
}

fn receive_datagrams(side: &Side) -> WorkSuccess {
    let all = wait_for(&side.recv_cq, DATAGRAMS);
    for received in &all {
        let len = received.result().unwrap().byte_len();
        assert_eq!(usize::try_from(len).unwrap(), Grh::LEN + DATAGRAM);
    }
    all[0].result().unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn udaddy_is_client_and_server() {
    let test = begin!(iwarp lacks "datagrams");
    let Some(mut addr) = free(&test) else { return };
    // Its port is fixed.
    addr.set_port(7174);
    let program = Program::start("udaddy", &format!("-b {}", addr.ip()));
    let mut found = None;
    let listens = until(PATIENCE, || {
        let step = DatagramService::find(addr, PATIENCE, Message::raw(b"")).unwrap();
        match step.wait(Some(PATIENCE)) {
            Ok(service) => found = Some(service),
            Err(Error::ConnectionManager { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        found.is_some()
    });
    assert!(listens, "the program listens at {addr}");
    let service = found.unwrap();
    let side = Side::new(&service.device_name());
    let (qp, _) = datagrams(&side);
    send_datagrams(&side, &qp, &service.ah_attr(), service.qp_num());
    receive_datagrams(&side);
    program.succeeds();

    let Some(Server { mut addr, .. }) = Server::new(&test, &peer_name()) else {
        return;
    };
    addr.set_port(7174);
    let mut listener = DatagramListener::bind(addr, 1).unwrap();
    let program = Program::start("udaddy", &format!("-s {}", addr.ip()));
    let side = Side::new(&peer_name());
    let (qp, inbox) = datagrams(&side);
    let request = listener.request(Some(PATIENCE)).unwrap().unwrap();
    request.accept(&qp, Message::raw(b"")).unwrap();
    let received = receive_datagrams(&side);
    let header = inbox[..Grh::LEN].try_into().unwrap();
    let back = AhAttr::from_completion(&side.context, qp.port_num(), &received, header).unwrap();
    let to = received.imm_data().unwrap();
    assert_eq!(to, received.src_qp());
    send_datagrams(&side, &qp, &back, to);
    program.succeeds();
}
