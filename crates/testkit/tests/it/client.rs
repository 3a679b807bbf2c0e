use postcommit_testkit::{Client, HttpServer, Reply};
use serde_json::json;

#[test]
fn it_sends_what_it_is_told_and_reads_the_answer() {
    let server = HttpServer::start(|request| Reply::json(202, json!({"path": request.path, "key": request.header("authorization")})));
    let answer = Client::new(server.addr()).key("k").post("/a?b=c", &json!({"x": 1})).expect(202);
    assert_eq!(answer.json(), json!({"path": "/a?b=c", "key": "Bearer k"}));
    assert_eq!(answer.header("Content-Type"), Some("application/json"));
    assert_eq!(server.requests()[0].json(), json!({"x": 1}));
}
