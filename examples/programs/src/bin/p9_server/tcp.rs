//! Over TCP: messages one after the other in a stream of bytes.

use std::io;
use std::pin::pin;

use programs::p9::HEADER;
use programs::{Context as _, Failure, say};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::Options;
use crate::clients::{Clients, Service, signals};

/// Accepts clients until a signal ends the server.
pub(crate) async fn accept(options: &Options, mut clients: Clients) -> Result<(), Failure> {
    let listener = TcpListener::bind(options.listen).await;
    let listener = listener.context(|| format!("cannot listen at {}", options.listen))?;
    let (root, addr) = (options.root.display(), listener.local_addr()?);
    say(format_args!("serving {root} over TCP at {addr}"))?;
    let mut signals = pin!(signals()?);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut signals => return clients.end().await,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                clients.failed(error.into()).await?;
                continue;
            }
        };
        if clients.has_room()? {
            let (options, stream) = (options.clone(), stream.into_std()?);
            clients.start(peer, move |service| serve(options, stream, service));
        } else {
            say(format_args!(
                "{peer} is refused: there are as many clients as there may be"
            ))?;
        }
    }
}

/// Answers one message after the other, until the client has left.
async fn serve(
    options: Options,
    stream: std::net::TcpStream,
    mut service: Service,
) -> Result<(), Failure> {
    let stream = TcpStream::from_std(stream)?;
    // Without it, the connection is only slower.
    drop(stream.set_nodelay(true));
    let size = options.size();
    let mut stream = BufReader::with_capacity(size, stream);
    let (mut message, mut answer) = (vec![0; size], vec![0; size]);
    loop {
        match stream.read_exact(&mut message[..4]).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => drop(read?),
        }
        let [a, b, c, d, ..] = message[..] else {
            return Ok(());
        };
        let len = usize::try_from(u32::from_le_bytes([a, b, c, d]))?;
        let rest = message.get_mut(4..len).filter(|_| len >= HEADER);
        let rest = rest.ok_or_else(|| Failure::new("what it sends are no messages"))?;
        let _len = stream.read_exact(rest).await?;
        let len = service.answer(&message[..len], &mut answer)?;
        let sent = timeout(options.limit(), stream.write_all(&answer[..len])).await;
        sent.map_err(|_over| Failure::new("it takes no answers"))??;
    }
}
