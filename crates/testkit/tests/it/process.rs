use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use postcommit_testkit::Child;

fn sh(script: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Child::spawn(command)
}

#[test]
fn lines_of_both_streams_are_waited_for_and_the_exit_is_told() {
    let child = sh("echo one; echo two >&2; echo one more; exit 3");
    assert_eq!(child.wait_for_line("two"), "two");
    assert_eq!(child.wait_for_lines("one", 2), ["one", "one more"]);
    assert_eq!(child.wait().code(), Some(3));
    assert_eq!(child.wait_for_line_or_exit("three"), None);
    assert_eq!(child.output().len(), 3);
}

#[test]
#[should_panic(expected = "waited for 1 line(s) with \"absent\"")]
fn a_line_that_cannot_come_any_more_is_not_waited_for() {
    sh("echo present").wait_for_line("absent");
}

#[test]
fn a_stopped_process_answers_only_when_it_goes_on() {
    let child = sh("trap 'echo caught; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    child.wait_for_line("ready");
    child.stop();
    child.term();
    assert_eq!(child.output(), ["ready"]);
    child.cont();
    child.wait_for_line("caught");
    assert!(child.wait().success());
    child.term(); // of no effect on what has ended
}

#[test]
fn a_killed_process_is_gone() {
    let child = sh("echo ready; exec sleep 600");
    child.wait_for_line("ready");
    assert_eq!(child.kill9().signal(), Some(9));
    assert!(!std::path::Path::new(&format!("/proc/{}", child.pid())).exists());
}
