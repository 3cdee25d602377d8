//! The server: a task for each client, and the files of a directory.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use programs::{Context as _, Failure, Listener, say};
use tokio::fs::{self, File};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use verbs_async::AsyncGroup;

use crate::link::{gone, group, meet};
use crate::{Body, Options, file_body};

/// Clients at the same time.
const MAX_CLIENTS: u32 = 64;

fn has_room(clients: &JoinSet<()>) -> bool {
    u32::try_from(clients.len()).is_ok_and(|clients| clients < MAX_CLIENTS)
}

/// Serves until the number of clients in the options have left, or no more connect in time.
pub(crate) async fn serve(options: &Options) -> Result<(), Failure> {
    let common = &options.common;
    let dir = fs::canonicalize(&options.dir).await;
    let named = || options.dir.display().to_string();
    let dir: Arc<Path> = dir.context(named)?.into();
    if !dir.is_dir() {
        return Err(Failure::new(format!("{} is no directory", named())));
    }
    let context = programs::open(common)?;
    let group = group(options, &context, MAX_CLIENTS)?;
    let listener = Listener::bind(common.port)?.into_socket();
    let listener = TcpListener::from_std(listener)?;
    say(format_args!(
        "serving {} on {}, TCP port {}",
        dir.display(),
        context.device().name(),
        listener.local_addr()?.port()
    ))?;
    let (mut clients, mut came) = (JoinSet::new(), 0_u64);
    while options.clients.is_none_or(|all| came < all) {
        let tcp = tokio::select! {
            // Further ones wait in the backlog.
            accepted = timeout(common.wait(), listener.accept()), if has_room(&clients) => match accepted {
                Ok(accepted) => accepted?.0,
                Err(_over) if !clients.is_empty() => continue,
                Err(_over) if came > 0 => break,
                Err(_over) => {
                    let wait = common.wait;
                    return Err(Failure::new(format!(
                        "no client came in {wait} s (--wait waits longer)"
                    )));
                }
            },
            Some(ended) = clients.join_next() => {
                ended?;
                continue;
            }
        };
        came += 1;
        let (options, group, dir, number) =
            (options.clone(), group.clone(), Arc::clone(&dir), came);
        clients.spawn(async move {
            if let Err(failure) = serve_one(&options, &group, tcp, number, &dir).await {
                // The other clients are not affected.
                drop(say(format_args!("client {number}: {failure}")));
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended?;
    }
    say(format_args!("{came} clients came and went"))
}

async fn serve_one(
    options: &Options,
    group: &AsyncGroup,
    mut tcp: TcpStream,
    number: u64,
    dir: &Arc<Path>,
) -> Result<(), Failure> {
    // Without it, the connection is only slower.
    drop(tcp.set_nodelay(true));
    let io = meet(options, group, &mut tcp).await?;
    let service = service_fn(|request| {
        let dir = Arc::clone(dir);
        async move { answer(number, &dir, request).await }
    });
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
    tokio::select! {
        served = connection => Ok(served?),
        gone = gone(&mut tcp) => Err(gone),
    }
}

/// Responds, and prints a line about it.
async fn answer(number: u64, dir: &Path, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = match (&method, path.as_str()) {
        (&Method::POST, "/echo") => {
            Response::new(request.into_body().map_err(io::Error::other).boxed_unsync())
        }
        (&Method::GET | &Method::HEAD, "/") => list(dir).await?,
        (&Method::GET | &Method::HEAD, path) => file(dir, path).await?,
        _ => words(
            StatusCode::METHOD_NOT_ALLOWED,
            "GET, HEAD, or POST to /echo\n",
        ),
    };
    let status = response.status().as_u16();
    let line = format!("client {number}: {method} {path}: {status}");
    say(line).map_err(|failure| io::Error::other(failure.to_string()))?;
    Ok(response)
}

fn words(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let never = |never: std::convert::Infallible| match never {};
    let body = Full::from(text.into()).map_err(never).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// The names of the files that can be fetched.
async fn list(dir: &Path) -> io::Result<Response<Body>> {
    let mut names = Vec::new();
    let mut entries = fs::read_dir(dir).await?;
    while let Some(entry) = entries.next_entry().await? {
        if entry.metadata().await.is_ok_and(|it| it.is_file()) {
            names.push(format!("/{}\n", entry.file_name().to_string_lossy()));
        }
    }
    names.sort_unstable();
    Ok(words(StatusCode::OK, names.concat()))
}

async fn file(dir: &Path, path: &str) -> io::Result<Response<Body>> {
    let missing = || words(StatusCode::NOT_FOUND, format!("there is no file {path}\n"));
    let Some(inside) = inside(dir, path) else {
        return Ok(missing());
    };
    // A link may lead out of the directory.
    let Ok(real) = fs::canonicalize(inside).await else {
        return Ok(missing());
    };
    if !real.starts_with(dir) {
        return Ok(missing());
    }
    let Ok(file) = File::open(real).await else {
        return Ok(missing());
    };
    let about = file.metadata().await?;
    if !about.is_file() {
        return Ok(missing());
    }
    let mut response = Response::new(file_body(file));
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, about.len().into());
    let any = hyper::header::HeaderValue::from_static("application/octet-stream");
    headers.insert(CONTENT_TYPE, any);
    Ok(response)
}

/// The file of a path in a directory, unless it is outside of it.
fn inside(dir: &Path, path: &str) -> Option<PathBuf> {
    let path = Path::new(path.strip_prefix('/')?);
    let is_name = |part: Component<'_>| matches!(part, Component::Normal(_));
    path.components().all(is_name).then(|| dir.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_in_the_directory() {
        let dir = Path::new("/srv");
        assert_eq!(inside(dir, "/a/b"), Some("/srv/a/b".into()));
        for path in ["a", "//etc/passwd", "/../etc/passwd", "/a/../../etc", "*"] {
            assert_eq!(inside(dir, path), None, "{path}");
        }
    }

    #[tokio::test]
    async fn links_do_not_lead_out_of_the_directory() {
        let dir = std::env::temp_dir().join(format!("http_over_rdma-{}", std::process::id()));
        fs::create_dir_all(&dir).await.unwrap();
        let dir = fs::canonicalize(dir).await.unwrap();
        fs::write(dir.join("here"), b"1234").await.unwrap();
        drop(fs::symlink("/etc/passwd", dir.join("there")).await);
        let here = file(&dir, "/here").await.unwrap();
        assert_eq!(here.headers()[CONTENT_LENGTH], "4");
        let body = here.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&body[..], b"1234");
        for path in ["/there", "/nothing", "/"] {
            let missing = file(&dir, path).await.unwrap();
            assert_eq!(missing.status(), StatusCode::NOT_FOUND, "{path}");
        }
        fs::remove_dir_all(dir).await.unwrap();
    }
}
