//! HTTP/2 over a stream: each operation is a request with a body, and its response with the same.

use std::cell::Cell;
use std::io;
use std::time::Instant;

use futures_util::future::try_join_all;
use h2::client::{self, SendRequest};
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream};
use hyper::body::Bytes;
use hyper::{Request, Response};
use programs::{Failure, Frames, memory};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::figures::{Figures, Latency};
use crate::futures::Theirs;
use crate::messages;
use crate::plan::Plan;
use crate::run::Done;

/// Measures on this side, over streams that are connected.
pub(crate) async fn side<S: AsyncRead + AsyncWrite + Unpin>(
    streams: Vec<S>,
    plan: &Plan,
    frames: &Frames,
    is_client: bool,
    mut theirs: Theirs,
    progress: &Cell<u64>,
) -> Result<Figures, Failure> {
    let figures = match is_client {
        true => ask(streams, plan, progress).await?,
        false => {
            let serving = streams.into_iter().map(|stream| serve(stream, progress));
            let _all = try_join_all(serving).await?;
            Figures::default()
        }
    };
    let posted = vec![0; plan.qps()];
    messages::send(frames, &Done { posted })?;
    let _theirs = theirs.wait_for(Option::is_some).await?;
    Ok(figures)
}

/// The client: all requests of all connections.
async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    streams: Vec<S>,
    plan: &Plan,
    progress: &Cell<u64>,
) -> Result<Figures, Failure> {
    let (mut requests, mut connections) = (Vec::new(), Vec::new());
    for stream in streams {
        let (request, connection) = client::handshake(stream).await?;
        requests.push(request);
        connections.push(connection);
    }
    let body = Bytes::from(memory(0_u8, plan.size())?);
    let asking = async move {
        let asker = Asker {
            requests,
            body,
            plan,
            progress,
        };
        if plan.bandwidth {
            asker.bandwidth().await
        } else {
            asker.latency().await
        }
    };
    // The connections end when the last request does, since nothing else can be asked then.
    let (figures, _all) = tokio::try_join!(asking, async {
        try_join_all(connections).await.map_err(Failure::from)
    })?;
    Ok(figures)
}

struct Asker<'p> {
    requests: Vec<SendRequest<Bytes>>,
    body: Bytes,
    plan: &'p Plan,
    progress: &'p Cell<u64>,
}

impl Asker<'_> {
    async fn one(&self, requests: &SendRequest<Bytes>) -> Result<(), Failure> {
        let mut requests = requests.clone().ready().await?;
        let request = Request::post("http://perf/").body(())?;
        let (response, mut sender) = requests.send_request(request, false)?;
        sender.send_data(self.body.clone(), true)?;
        let len = drain(response.await?.into_body()).await?.len();
        if len != self.body.len() {
            let asked = self.body.len();
            return Err(Failure::new(format!(
                "a response of {len} bytes to a request of {asked}"
            )));
        }
        self.progress.set(self.progress.get() + 1);
        Ok(())
    }

    async fn latency(&self) -> Result<Figures, Failure> {
        let [requests] = &self.requests[..] else {
            return Err(Failure::new("a latency is that of one connection"));
        };
        let mut latency = Latency::new(self.plan)?;
        while latency.next().is_some() {
            let begun = Instant::now();
            self.one(requests).await?;
            latency.record(begun);
        }
        Ok(latency.figures(1))
    }

    /// Keeps the allowed number of requests in flight on each connection.
    async fn bandwidth(&self) -> Result<Figures, Failure> {
        let plan = self.plan;
        let windows = |limit: u64, deadline: Option<Instant>| {
            try_join_all(
                self.requests
                    .iter()
                    .map(move |requests| self.window(requests, limit, deadline)),
            )
        };
        let _all = windows(plan.warm_up(), None).await?;
        let (before, start) = (self.progress.get(), Instant::now());
        let _all = match plan.duration() {
            Some(duration) => windows(u64::MAX, Some(start + duration)).await?,
            None => windows(plan.iters().unwrap_or(0), None).await?,
        };
        Ok(Figures::bandwidth(
            self.progress.get() - before,
            start.elapsed(),
        ))
    }

    async fn window(
        &self,
        requests: &SendRequest<Bytes>,
        limit: u64,
        deadline: Option<Instant>,
    ) -> Result<(), Failure> {
        let asked = Cell::new(0);
        let asking = (0..self.plan.in_flight()).map(async |_| {
            while asked.get() < limit && deadline.is_none_or(|deadline| Instant::now() < deadline) {
                asked.set(asked.get() + 1);
                self.one(requests).await?;
            }
            Ok::<_, Failure>(())
        });
        try_join_all(asking).await.map(drop)
    }
}

/// The server of one connection, until the client closes it.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    progress: &Cell<u64>,
) -> Result<(), Failure> {
    let mut connection = server::handshake(stream).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = match accepted {
            // The client was done while this side wrote, perhaps an acknowledgement. If it was not, it fails itself.
            Err(error) if error.get_io().is_some_and(is_closed) => break,
            accepted => accepted?,
        };
        progress.set(progress.get() + 1);
        // The connection has to be polled meanwhile.
        drop(tokio::spawn(answer(request.into_body(), respond)));
    }
    Ok(())
}

/// Whether the peer has closed its stream while this side writes.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

async fn answer(body: RecvStream, mut respond: SendResponse<Bytes>) {
    let answered = async {
        let bytes = drain(body).await?;
        let mut sender = respond.send_response(Response::new(()), false)?;
        sender.send_data(bytes, true)
    };
    if answered.await.is_err() {
        respond.send_reset(Reason::INTERNAL_ERROR);
    }
}

/// All of a body.
async fn drain(mut body: RecvStream) -> Result<Bytes, h2::Error> {
    let mut all = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        if all.is_empty() && body.is_end_stream() {
            return Ok(chunk);
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all.into())
}
