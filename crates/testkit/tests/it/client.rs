use postcommit_testkit::{HttpClient, HttpServer, Reply};
use serde_json::json;

#[test]
fn the_client_sends_the_given_request_and_reads_the_response() {
    let server = HttpServer::start(|request| {
        Reply::json(202, json!({"path": request.path, "key": request.header("authorization")}))
    });
    let answer = HttpClient::new(server.addr()).key("k").post("/a?b=c", &json!({"x": 1})).expect(202);
    assert_eq!(answer.json(), json!({"path": "/a?b=c", "key": "Bearer k"}));
    assert_eq!(answer.header("Content-Type"), Some("application/json"));
    assert_eq!(server.requests()[0].json(), json!({"x": 1}));
}
