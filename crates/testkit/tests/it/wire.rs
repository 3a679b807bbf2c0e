//! A minimal client on raw sockets, so that tests see every byte that the servers send.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub async fn connect(addr: SocketAddr) -> TcpStream {
    TcpStream::connect(addr).await.expect("connect")
}

/// Posts `body` with a `webhook-id`, and asks for the connection to be closed after the response.
pub async fn post(socket: &mut TcpStream, id: &str, body: &str) {
    let request = format!(
        "POST /hook?a=1 HTTP/1.1\r\nHost: test\r\nWebhook-Id: {id}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await.expect("send");
}

/// Reads everything that the other side sends until it closes the connection.
pub async fn read_all(socket: &mut TcpStream) -> io::Result<String> {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Posts on a new connection and reads the response until the connection is closed.
pub async fn exchange(addr: SocketAddr, id: &str) -> io::Result<String> {
    let mut socket = connect(addr).await;
    post(&mut socket, id, "{}").await;
    read_all(&mut socket).await
}
