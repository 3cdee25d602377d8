//! The client: one request, and its response.

use std::io::Write as _;
use std::time::Instant;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use programs::{Context as _, Failure, Measured, Progress, say};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::expected::Expected;
use crate::link::{gone, group, meet};
use crate::{Body, Options, file_body, too_long};

/// Sends the request, and prints the response.
pub(crate) async fn fetch(options: &Options, host: &str) -> Result<(), Failure> {
    let common = &options.common;
    let context = programs::open(common)?;
    let request = request(options, host).await?;
    let expected = match &options.check {
        Some(path) => Some(Expected::open(path).await?),
        None => None,
    };
    let op = match *request.method() {
        Method::GET => "http_get",
        Method::POST => "http_post",
        _ => "http",
    };
    let group = group(options, &context, 1)?;
    let address = (host, common.port);
    let doing = || common.cannot_connect(host);
    let connected = timeout(common.limit(), TcpStream::connect(address)).await;
    let connected = connected.map_err(|_over| too_long(options, "to connect"));
    let mut tcp = connected.context(doing)?.context(doing)?;
    let io = meet(options, &group, &mut tcp).await.context(doing)?;
    let (mut requests, connection) = http1::handshake(io).await?;
    let connection = tokio::spawn(connection);
    let verified = expected.is_some();
    let asked = async {
        let start = Instant::now();
        let response = requests.send_request(request).await?;
        let status = response.status();
        let is_error = status.is_client_error() || status.is_server_error();
        // The body of an error is not the requested file.
        let expected = expected.filter(|_| !is_error);
        let bytes = print(options, response, expected).await?;
        if is_error {
            return Err(Failure::new(format!("the server answered {status}")));
        }
        Measured::new(op, bytes, 1, start.elapsed(), verified).print()
    };
    let answered = tokio::select! {
        answered = asked => answered,
        gone = gone(&mut tcp) => return Err(gone),
    };
    // The error of the connection is the cause of that of the request.
    drop(requests);
    let _ended = connection.await?;
    answered
}

async fn request(options: &Options, host: &str) -> Result<Request<Body>, Failure> {
    if !options.path.starts_with('/') {
        return Err(Failure::misuse(format!(
            "the path {:?} does not begin with /",
            options.path
        )));
    }
    let body = match (&options.data, &options.upload) {
        (Some(words), _) => Some(full(words.clone())),
        (None, Some(path)) => {
            let file = File::open(path).await;
            Some(file_body(file.context(|| path.display().to_string())?))
        }
        (None, None) => None,
    };
    let method = match &options.method {
        Some(name) => Method::from_bytes(name.as_bytes())?,
        None if body.is_some() => Method::POST,
        None => Method::GET,
    };
    let request = Request::builder()
        .method(method)
        .uri(&options.path)
        .header("host", host)
        .header("user-agent", "http_over_rdma");
    Ok(request.body(body.unwrap_or_else(|| full("")))?)
}

fn full(words: impl Into<Bytes>) -> Body {
    let never = |never: std::convert::Infallible| match never {};
    Full::new(words.into()).map_err(never).boxed_unsync()
}

/// Prints a response, checks its body, and returns the body's length.
async fn print(
    options: &Options,
    response: Response<Incoming>,
    mut expected: Option<Expected>,
) -> Result<u64, Failure> {
    let (head, mut body) = response.into_parts();
    say(format_args!("{:?} {}", head.version, head.status))?;
    for (name, value) in &head.headers {
        say(format_args!(
            "{name}: {}",
            String::from_utf8_lossy(value.as_bytes())
        ))?;
    }
    say("")?;
    let named = |path: &std::path::PathBuf| path.display().to_string();
    let mut file = match &options.output {
        Some(path) => Some(File::create(path).await.context(|| named(path))?),
        None => None,
    };
    let total = hyper::body::Body::size_hint(&body).exact().unwrap_or(0);
    let mut progress = Progress::new("bytes", total);
    let mut done = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.context(|| format!("after {done} bytes"))?;
        let Some(bytes) = frame.data_ref() else {
            continue;
        };
        if let Some(expected) = &mut expected {
            expected.next(bytes).await?;
        }
        match (&mut file, &options.output) {
            (Some(file), Some(path)) => file.write_all(bytes).await.context(|| named(path))?,
            _ => std::io::stdout()
                .write_all(bytes)
                .context(|| "cannot write to standard output")?,
        }
        done += u64::try_from(bytes.len())?;
        progress.at(done);
    }
    drop(progress);
    if let Some(expected) = expected {
        expected.end().await?;
    }
    if let (Some(file), Some(path)) = (&mut file, &options.output) {
        file.flush().await.context(|| named(path))?;
        say(format_args!("{done} bytes are in {}", path.display()))?;
    } else {
        std::io::stdout()
            .flush()
            .context(|| "cannot write to standard output")?;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    async fn of(words: &[&str]) -> Result<Request<Body>, Failure> {
        let words = [&["http_over_rdma"], words].concat();
        request(&Options::try_parse_from(words)?, "there").await
    }

    #[tokio::test]
    async fn a_request_is_what_the_options_say() {
        let get = of(&["there", "/a"]).await.unwrap();
        assert_eq!((get.method(), get.uri().path()), (&Method::GET, "/a"));
        assert_eq!(get.headers()["host"], "there");
        let post = of(&["there", "/a", "--data", "hello"]).await.unwrap();
        assert_eq!(post.method(), Method::POST);
        let body = post.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&body[..], b"hello");
        let head = of(&["there", "-X", "HEAD"]).await.unwrap();
        assert_eq!((head.method(), head.uri().path()), (&Method::HEAD, "/"));
    }

    #[tokio::test]
    async fn impossible_request_is_rejected() {
        for words in [
            &["there", "/no path"][..],
            &["there", "nopath"],
            &["there", "-X", "two words"],
            &["there", "/", "--upload", "/nowhere/at all"],
            &["there", "/", "--upload", "/dev/null", "--data", "x"],
        ] {
            assert!(of(words).await.is_err(), "{words:?}");
        }
    }
}
