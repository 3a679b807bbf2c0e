//! The glossary, and the links to it.

use postcommit_channel::model::{DeliveryState, Reason};

use super::desk::{Desk, session};
use crate::installation::Kind;

#[test]
fn a_notification_leads_to_the_words_that_explain_its_state() {
    let desk = Desk::new(Kind::Sqlite);
    desk.browser.disable_scripts();
    desk.plant();
    desk.open("/notifications?state=parked");
    desk.click(".what a");
    desk.press("What this means");
    desk.until("location.pathname === '/glossary' && document.querySelector(':target')");
    let said = desk.text(":target");
    assert!(said.contains("The provider refused this message for good."), "{said}");
    for name in DeliveryState::ALL.map(DeliveryState::name).iter().chain(Reason::ALL.map(Reason::name).iter()) {
        assert_eq!(desk.count(&format!("#{name}")), 1, "{name}");
    }
    desk.picture("glossary");
    desk.is_unhurt();
    // Everybody who is signed in may read it, and the footer of every page leads to it.
    let (enqueuer, _) = session(&desk.app, "default", "enqueue");
    let page = enqueuer.get("/glossary").expect(200).text();
    assert!(page.contains("<a href=\"/glossary\">What the states mean</a>"), "{page}");
}
