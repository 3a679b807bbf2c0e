use std::io::ErrorKind;

use postcommit_testkit::{HttpServer, Proxy, ProxyMode, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::wire;

fn server() -> (HttpServer, Proxy) {
    let server = HttpServer::start(|_| Reply::ok());
    let proxy = Proxy::start(server.addr());
    (server, proxy)
}

#[tokio::test]
async fn passed_bytes_arrive_and_the_connection_closes_gracefully() {
    let (server, proxy) = server();
    let answer = wire::exchange(proxy.addr(), "a").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_black_hole_holds_everything_back_until_it_heals() {
    let (server, proxy) = server();
    proxy.set(ProxyMode::BlackHole);
    let mut socket = wire::connect(proxy.addr()).await;
    wire::post(&mut socket, "a", "").await;
    assert_eq!(server.connections(), 0);
    proxy.set(ProxyMode::Pass);
    let answer = wire::read_all(&mut socket).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn a_connection_is_reset_after_a_number_of_bytes_in_both_directions() {
    let (server, proxy) = server();
    let answer = wire::exchange(proxy.addr(), "a").await.unwrap().len();
    let request = "POST /hook?a=1 HTTP/1.1\r\nHost: test\r\nWebhook-Id: a\r\nConnection: close\r\n\
                   Content-Length: 2\r\n\r\n{}"
        .len();

    proxy.set(ProxyMode::ResetAfter(request - 1));
    let reset = wire::exchange(proxy.addr(), "a").await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.requests().len(), 1);

    proxy.set(ProxyMode::ResetAfter(request + answer - 1));
    let reset = wire::exchange(proxy.addr(), "a").await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn cutting_resets_both_ends() {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(target.local_addr().unwrap());
    let mut client = wire::connect(proxy.addr()).await;
    let (mut server, _) = target.accept().await.unwrap();
    client.write_all(b"x").await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'x');
    assert_eq!(proxy.live(), 1);
    proxy.cut_all().await;
    assert_eq!(proxy.live(), 0);
    for end in [&mut client, &mut server] {
        let reset = wire::read_all(end).await.unwrap_err();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn a_target_that_refuses_resets_the_client() {
    let (server, proxy) = server();
    drop(server);
    // The reset may arrive as early as the connect.
    let answer = async {
        let mut client = TcpStream::connect(proxy.addr()).await?;
        wire::read_all(&mut client).await
    };
    assert_eq!(answer.await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}
