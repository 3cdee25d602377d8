//! The server: one endpoint, which sends back what comes.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use programs::{Failure, Listener, Peer, say};
use verbs_channel::Datagrams;
use verbs_channel::datagrams::Datagram;

use crate::Options;
use crate::message::Message;

/// How often it looks for clients that come and go.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let context = programs::open(&options.common)?;
    let mut datagrams = options.datagrams(&context)?.build()?;
    let listener = Listener::bind(options.common.port)?;
    let (device, port) = (context.device().name(), listener.port());
    say(format_args!("serving on {device}, TCP port {port}"))?;
    let mut clients = Clients::meet(listener, options);
    let mut counts = Counts::default();
    while options.clients.is_none_or(|all| clients.gone < all) {
        clients.look(&datagrams)?;
        let until = Instant::now() + LOOK;
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            if let Some(datagram) = datagrams.receive_from(left)? {
                echo(&mut datagrams, datagram, options.lose, &mut counts)?;
            }
        }
    }
    let _left = datagrams.flush(Some(options.common.limit()));
    let (gone, Counts { echoed, lost }) = (clients.gone, counts);
    say(format_args!(
        "{gone} clients, {echoed} datagrams echoed, each byte checked"
    ))?;
    if options.lose.is_some() {
        say(format_args!("{lost} datagrams lost on purpose"))?;
    }
    Ok(())
}

#[derive(Default)]
struct Counts {
    echoed: u64,
    lost: u64,
}

/// Sends a datagram back to where it came from, in the buffer that it came in.
fn echo(
    datagrams: &mut Datagrams,
    datagram: Datagram,
    lose: Option<u64>,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let _message = Message::parse(&datagram)?;
    if lose.is_some_and(|lose| (counts.echoed + counts.lost + 1).is_multiple_of(lose)) {
        counts.lost += 1;
        return Ok(());
    }
    let from = datagram.from();
    let sent = datagrams.send_to(&from, datagram.into_buffer());
    sent.map_err(verbs_channel::error::Rejected::into_error)?;
    counts.echoed += 1;
    Ok(())
}

/// The TCP connections of the clients. Nothing goes over them but the endpoint: they show when a client
/// has ended.
struct Clients {
    met: Receiver<Result<Peer, Failure>>,
    here: Vec<Peer>,
    came: u64,
    gone: u64,
}

impl Clients {
    fn meet(listener: Listener, options: &Options) -> Self {
        let (wait, limit) = (options.common.wait(), options.common.limit());
        let (send, met) = mpsc::channel();
        // It ends with the program.
        let _thread = thread::spawn(
            move || {
                while send.send(listener.accept(wait, limit)).is_ok() {}
            },
        );
        Self {
            met,
            here: Vec::new(),
            came: 0,
            gone: 0,
        }
    }

    fn look(&mut self, datagrams: &Datagrams) -> Result<(), Failure> {
        self.here.retain(|client| client.still_there().is_ok());
        while let Ok(met) = self.met.try_recv() {
            match met {
                // One that is gone already is noticed at the next look.
                Ok(client) => {
                    drop(client.send(&datagrams.endpoint().to_bytes()));
                    self.came += 1;
                    self.here.push(client);
                    say(format_args!("client {} is here", self.came))?;
                }
                Err(why) if self.here.is_empty() => return Err(why),
                Err(_) => {}
            }
        }
        self.gone = self.came - u64::try_from(self.here.len())?;
        Ok(())
    }
}
