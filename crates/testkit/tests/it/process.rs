use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use postcommit_testkit::Child;

fn sh(script: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Child::spawn(command)
}

#[test]
fn waits_for_lines_of_both_streams_and_returns_the_exit_status() {
    let child = sh("echo one; echo two >&2; echo one more; exit 3");
    assert_eq!(child.wait_for_line("two"), "two");
    assert_eq!(child.wait_for_lines("one", 2), ["one", "one more"]);
    assert_eq!(child.wait().code(), Some(3));
    assert_eq!(child.wait_for_line_or_exit("three"), None);
    assert_eq!(child.output().len(), 3);
}

#[test]
#[should_panic(expected = "waited for 1 line(s) with \"absent\"")]
fn a_wait_for_a_line_ends_when_the_output_ends() {
    sh("echo present").wait_for_line("absent");
}

#[test]
fn a_stopped_process_reacts_only_after_it_continues() {
    let child = sh("trap 'echo caught; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    child.wait_for_line("ready");
    child.stop();
    child.term();
    assert_eq!(child.output(), ["ready"]);
    child.cont();
    child.wait_for_line("caught");
    assert!(child.wait().success());
    child.term(); // has no effect on an ended process
}

#[test]
fn a_killed_process_is_gone() {
    let child = sh("echo ready; exec sleep 600");
    child.wait_for_line("ready");
    assert_eq!(child.kill9().signal(), Some(9));
    assert!(!std::path::Path::new(&format!("/proc/{}", child.pid())).exists());
}
