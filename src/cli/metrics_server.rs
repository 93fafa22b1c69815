//! The HTTP server of `gpufleet collect --metrics`: GET and HEAD of `/metrics`, nothing else.
//!
//! Every connection serves one request, within a time limit, and the number of connections is limited; further ones wait
//! in the backlog of the socket. There is no login: the address decides who may read.

use super::CommandError;
use super::arguments::CollectArgs;
use super::collector::{CollectorState, StateReader};
use super::exit::warn;
use crate::diagnosis::Finding;
use crate::fleet::Moment;
use crate::output::Report;
use crate::output::open_metrics::{self, MetricsOptions, TextFormat};
use crate::wire::format::io_cause;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// The limits of the server.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Number of connections at once.
    connections: usize,
    /// Time of a connection, from its start to the end of its response.
    time: Duration,
    /// Size of the request line and all headers in bytes; hyper requires at least 8192.
    head_bytes: usize,
}

const LIMITS: Limits = Limits { connections: 16, time: Duration::from_secs(10), head_bytes: 8192 };

/// How long to wait after a connection could not be accepted, for example without a free file descriptor.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Returns the text of a scrape, or `None` while the collector ends.
type Render = Arc<dyn Fn(TextFormat) -> Pin<Box<dyn Future<Output = Option<String>> + Send>> + Send + Sync>;

/// A running server. Dropping it closes the socket and all connections.
pub(super) struct MetricsServer {
    address: SocketAddr,
    task: AbortHandle,
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl MetricsServer {
    /// Serves the metrics of the collector, and says where. `None` without `--metrics`.
    ///
    /// # Errors
    /// The address cannot be used.
    pub(super) async fn of_collector(
        arguments: &CollectArgs,
        reader: StateReader,
    ) -> Result<Option<Self>, CommandError> {
        let Some(address) = arguments.metrics else { return Ok(None) };
        let per_process = arguments.per_process;
        let render: Render = Arc::new(move |format| {
            let reader = reader.clone();
            let options = MetricsOptions { format, per_process };
            Box::pin(async move { reader.read(move |state, now| text_of(state, options, now)).await })
        });
        let server = Self::start(address, render, LIMITS).await?;
        warn(&format!("metrics are at http://{}/metrics", server.address));
        if !address.ip().is_loopback() {
            warn("everyone who can reach this address reads the metrics, with host and user names: there is no login");
        }
        Ok(Some(server))
    }

    async fn start(address: SocketAddr, render: Render, limits: Limits) -> Result<Self, CommandError> {
        let error = |error: &std::io::Error| {
            CommandError::failed(format!(
                "cannot listen on {address} for the metrics: {}\n  hint: write another address, as in --metrics \
                 127.0.0.1:9900",
                io_cause(error)
            ))
        };
        let listener = TcpListener::bind(address).await.map_err(|bind| error(&bind))?;
        let address = listener.local_addr().map_err(|local| error(&local))?;
        let task = tokio::spawn(serve(listener, render, limits)).abort_handle();
        Ok(Self { address, task })
    }
}

/// The metrics of the collector.
fn text_of(state: &CollectorState, options: MetricsOptions, now: Moment) -> String {
    let states = |id| state.engine.states(id).to_vec();
    let findings: Vec<&Finding> = state.engine.findings().collect();
    open_metrics::text(&Report { fleet: &state.fleet, states: &states, findings: &findings, now }, options)
}

async fn serve(listener: TcpListener, render: Render, limits: Limits) {
    // Dropping the set ends all connections.
    let mut connections = JoinSet::new();
    loop {
        let is_full = connections.len() >= limits.connections;
        tokio::select! {
            Some(_ended) = connections.join_next() => {}
            accepted = listener.accept(), if !is_full => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(timeout(limits.time, serve_connection(stream, Arc::clone(&render), limits)));
                }
                Err(_) => sleep(ACCEPT_RETRY).await,
            },
        }
    }
}

async fn serve_connection(stream: TcpStream, render: Render, limits: Limits) {
    let service = service_fn(move |request| {
        let render = Arc::clone(&render);
        async move { Ok::<_, Infallible>(respond(&request, render).await) }
    });
    // The client may have gone away or sent a request that hyper has answered with an error.
    let _ended = http1::Builder::new()
        .keep_alive(false)
        .header_read_timeout(None)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond(request: &Request<Incoming>, render: Render) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        return response(StatusCode::NOT_FOUND, "there is only /metrics\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let accepts_open_metrics = request
        .headers()
        .get_all(ACCEPT)
        .iter()
        .any(|accept| accept.to_str().is_ok_and(|accept| accept.contains("application/openmetrics-text")));
    let format = if accepts_open_metrics { TextFormat::OpenMetrics } else { TextFormat::Prometheus };
    match render(format).await {
        Some(text) => with_type(StatusCode::OK, text, format.content_type()),
        None => response(StatusCode::SERVICE_UNAVAILABLE, "the collector ends\n"),
    }
}

fn response(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    with_type(status, text, "text/plain; charset=utf-8")
}

fn with_type(status: StatusCode, body: impl Into<Bytes>, content_type: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A text that is too large for the buffers of a socket.
    const LARGE: usize = 32 << 20;

    fn render(text: impl Fn(TextFormat) -> Option<String> + Send + Sync + 'static) -> Render {
        Arc::new(move |format| Box::pin(std::future::ready(text(format))))
    }

    async fn start(render: Render, limits: Limits) -> MetricsServer {
        MetricsServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), render, limits).await.expect("starts")
    }

    async fn small_server() -> MetricsServer {
        start(render(|format| Some(format!("{format:?}\n"))), LIMITS).await
    }

    /// Sends bytes and returns everything that the server answers.
    async fn exchange(server: &MetricsServer, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(server.address).await.expect("connects");
        // The server may answer and close before it has read everything.
        let _sent = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _closed = timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await.expect("an answer");
        String::from_utf8(answer).expect("UTF-8")
    }

    fn status(answer: &str) -> &str {
        answer.get("HTTP/1.1 ".len()..).and_then(|rest| rest.get(..3)).unwrap_or(answer)
    }

    #[tokio::test]
    async fn metrics_are_served_in_the_format_that_the_client_accepts() {
        let server = small_server().await;
        let plain = exchange(&server, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(status(&plain), "200", "{plain}");
        assert!(plain.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{plain}");
        assert!(plain.contains("connection: close\r\n") && plain.ends_with("\r\n\r\nPrometheus\n"), "{plain}");
        let accept =
            "Accept: application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let open =
            exchange(&server, format!("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n{accept}\r\n\r\n").as_bytes()).await;
        assert!(
            open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
            "{open}"
        );
        assert!(open.ends_with("\r\n\r\nOpenMetrics\n"), "{open}");
        let head = exchange(&server, b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(
            status(&head) == "200" && head.contains("content-length: 11\r\n") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
    }

    #[tokio::test]
    async fn other_requests_are_refused() {
        let server = small_server().await;
        let huge_header = format!("GET /metrics HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
        let many_headers = format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(500));
        let long_path = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(100_000));
        for (request, expected) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
            ("GET /metrics/../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", "405"),
            ("DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "405"),
            ("what is this\r\n\r\n", "400"),
            ("\x16\x03\x01\x02\r\n\r\n", "400"),
            ("GET /metrics HTTP/9.9\r\n\r\n", "400"),
            (huge_header.as_str(), "431"),
            (many_headers.as_str(), "431"),
            (long_path.as_str(), "431"),
        ] {
            let answer = exchange(&server, request.as_bytes()).await;
            let start: String = request.chars().take(60).collect();
            // A reset after a refusal may overtake the answer, which a client with unsent bytes does not read.
            let is_reset = answer.is_empty() && request.len() > 10_000;
            assert!(status(&answer) == expected || is_reset, "{start}: {answer}");
        }
        let refused = exchange(&server, b"PUT /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(refused.contains("allow: GET, HEAD\r\n"), "{refused}");
        let usual = exchange(&server, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(status(&usual), "200", "the server goes on");
    }

    #[tokio::test]
    async fn slow_clients_are_disconnected_and_others_wait_for_a_place() {
        let limits = Limits { connections: 2, time: Duration::from_millis(300), ..LIMITS };
        let server = start(render(|_| Some("x".repeat(LARGE))), limits).await;
        // One sends half a request, one never reads its answer: they take both places.
        let mut half = TcpStream::connect(server.address).await.expect("connects");
        half.write_all(b"GET /metrics HTTP/1.1\r\nHo").await.expect("writes");
        let mut deaf = TcpStream::connect(server.address).await.expect("connects");
        deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("writes");
        let served = exchange(&server, b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(status(&served), "200", "after the time limit of the others");
        let mut rest = Vec::new();
        let _reset = half.read_to_end(&mut rest).await;
        assert!(rest.is_empty(), "no answer to half a request");
        let _reset = deaf.read_to_end(&mut rest).await;
        assert!(rest.len() < LARGE, "the answer was cut off: {}", rest.len());
    }

    #[tokio::test]
    async fn many_clients_are_served() {
        let server = Arc::new(small_server().await);
        let mut clients = JoinSet::new();
        for _ in 0..200 {
            let server = Arc::clone(&server);
            clients.spawn(async move { exchange(&server, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await });
        }
        let answers = clients.join_all().await;
        assert!(answers.len() == 200 && answers.iter().all(|answer| answer.ends_with("Prometheus\n")));
    }

    #[tokio::test]
    async fn the_end_of_the_collector_is_an_answer() {
        let server = start(render(|_| None), LIMITS).await;
        let answer = exchange(&server, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(status(&answer) == "503" && answer.ends_with("the collector ends\n"), "{answer}");
        let address = server.address;
        drop(server);
        // The task ends at its next turn.
        timeout(Duration::from_secs(10), async {
            while TcpStream::connect(address).await.is_ok() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the socket is closed");
    }

    #[tokio::test]
    async fn an_address_in_use_is_an_error() {
        let server = small_server().await;
        let error = MetricsServer::start(server.address, render(|_| None), LIMITS).await.err().expect("an error");
        assert_eq!(
            error.to_string(),
            format!(
                "gpufleet: cannot listen on {} for the metrics: Address already in use\n  hint: write another address, \
                 as in --metrics 127.0.0.1:9900\n",
                server.address
            )
        );
    }
}
